"""How long each batch can still be replayed."""

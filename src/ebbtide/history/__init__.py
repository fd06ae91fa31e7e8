"""What each batch did, as recorded in the checkpoint."""

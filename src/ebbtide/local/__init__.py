"""A real Kafka broker and a visit generator for the laptop; production needs neither."""

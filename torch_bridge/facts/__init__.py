"""What is known of a saved tensor before anyone decides what becomes of it."""

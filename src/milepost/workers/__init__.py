"""Engine processes as the front end sees them."""

"""What images and audio in requests stand for: fetched, decoded, checked and named by content."""

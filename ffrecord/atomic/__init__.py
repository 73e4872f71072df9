"""Write files and folders that appear whole or not at all, and lock them against other writers."""

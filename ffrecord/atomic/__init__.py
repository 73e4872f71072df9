"""Files and folders that appear whole or not at all, and the locks of those who write them."""

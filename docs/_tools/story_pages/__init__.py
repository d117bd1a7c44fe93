"""The claims of docs/story, one file each: how it is measured, and what its page says about the stored rows."""

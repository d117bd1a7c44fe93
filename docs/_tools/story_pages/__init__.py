"""The claims of docs/story, one file for each: how it is measured, and what the stored rows say on its page."""

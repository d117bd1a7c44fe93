"""A recipe carried out: its specs are resolved, its run has a folder and logs, and Lightning trains."""

"""Web page of the admin server (ADR 0055): HTML that the server renders, one style sheet and one script."""

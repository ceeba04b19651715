"""Decisions about principals: what each may do. Called by the handlers."""

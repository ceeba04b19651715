"""The broker's side of tiering: uploads, the cleanup of remote storage, and followers that start from the
tier."""

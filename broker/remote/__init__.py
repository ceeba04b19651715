"""The broker's side of tiering: when to upload, housekeeping in the bucket, followers that start from it."""

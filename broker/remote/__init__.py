"""The broker's side of tiering: what is uploaded when, housekeeping in the bucket, followers that start from it."""

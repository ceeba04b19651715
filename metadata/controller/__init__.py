"""The controller: decides on commands, giving records and a reply. Pure; the metadata node drives it."""

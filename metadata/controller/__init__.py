"""The controller: commands judged against an image, giving records and a reply. Pure; the node drives it."""

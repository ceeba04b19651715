"""The base of the pure cores of coordinators: effects, turns and stored records."""

"""Pure core of replication: what a leader and a follower of one partition decide."""

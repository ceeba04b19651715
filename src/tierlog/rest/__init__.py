"""REST gateway: a process that lets HTTP clients produce and consume, and manage topics and groups.

It speaks the Kafka protocol to the cluster and has no state of its own (docs/adr/0054). Each request of a
client carries its login, with which the gateway logs in at the brokers: these check the ACLs of that
principal, as for any Kafka client. Started by `tierlog rest`.
"""

"""The node agent: obeys commands, runs work, reports what became of it.

`virtual_node` is one node as a pure state machine, for simulations and rehearsals; `agent` hosts such nodes against
Kafka.
"""

"""A simulated twin of a node: the node's own answers, changed by the commands of a plan that it plays."""

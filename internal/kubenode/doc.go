// Package kubenode makes the files with which a node of a Kubernetes cluster reaches its API servers through a gateway
// on the node: the gateway's configuration, the systemd unit or static pod that runs it, and kubeconfigs that point at
// it. Plan reads and checks everything and writes nothing; Files.Write writes.
package kubenode

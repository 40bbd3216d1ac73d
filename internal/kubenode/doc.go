// Package kubenode makes what a node of a Kubernetes cluster needs to reach its API servers through a gateway of its own: the gateway's
// configuration, the systemd unit or static pod that runs it, and kubeconfigs that point at it. Plan reads and checks everything and writes
// nothing; Files.Write writes.
package kubenode

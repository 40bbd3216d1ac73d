// Command pause is the first process of each pod in `make test-pods` and `make test-kubeadm`, in place of Kubernetes's pause: it keeps the pod's namespaces.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
}

// Command pause holds a pod's namespaces open until it is told to end. It is written in Go because
// the machine that builds Kubernetes has Go for certain and a C compiler perhaps.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// The first process of a PID namespace ignores a signal it has no handler for.
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
}

// Command kubernetes is every Kubernetes component the end-to-end tests need in one binary. The
// first argument names the component; the rest are that component's own flags. One binary shares
// its text pages between the processes and is linked once, which on two cores is most of the cost.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func main() {
	var name string
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	command, known := components[name]
	if !known {
		var names []string
		for each := range components {
			names = append(names, each)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "unknown component %q: use one of %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	// Components read os.Args themselves and must not see the selector.
	os.Args = append([]string{name}, os.Args[2:]...)
	os.Exit(cli.Run(command()))
}

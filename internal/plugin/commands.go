/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package plugin

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/traas-stack/altershield-operator/internal/wording"
)

// command returns a command of kubectl, each word quoted for a shell.
func command(words ...string) string {
	text := "kubectl"
	for _, word := range words {
		text += " " + wording.ShellWord(word)
	}
	return text
}

// kubectl returns a command of kubectl in a namespace, with the flags that choose namespace and cluster.
func (c *connection) kubectl(namespace string, words ...string) string {
	return command(words...) + c.flagsFor(namespace)
}

// commandIn returns a command of this program in a namespace, as the user types it.
func (c *connection) commandIn(namespace string, words ...string) string {
	return c.kubectl(namespace, append([]string{"altershield"}, words...)...)
}

// command returns a command of this program on a workload, as the user types it.
func (c *connection) command(t target, name string, words ...string) string {
	return c.commandIn(t.key.Namespace, append([]string{name, t.String()}, words...)...)
}

// flagsFor returns the flags that choose a namespace, unless it is the default, and the cluster.
func (c *connection) flagsFor(namespace string) (flags string) {
	if namespace != "" && namespace != c.contextNamespace() {
		flags = " -n " + wording.ShellWord(namespace)
	}
	return strings.Join(append([]string{flags}, c.clusterFlags()...), " ")
}

// clusterFlags returns the flags by which the user chose the cluster and the identity, without a token or a password.
func (c *connection) clusterFlags() (flags []string) {
	f := c.flags
	for _, flag := range []struct {
		name  string
		value *string
	}{
		{"--kubeconfig", f.KubeConfig}, {"--context", f.Context}, {"--cluster", f.ClusterName}, {"--server", f.APIServer},
		{"--user", f.AuthInfoName}, {"--as", f.Impersonate}, {"--as-uid", f.ImpersonateUID},
	} {
		if flag.value != nil && *flag.value != "" {
			flags = append(flags, flag.name+"="+wording.ShellWord(*flag.value))
		}
	}
	if f.ImpersonateGroup != nil {
		for _, group := range *f.ImpersonateGroup {
			flags = append(flags, "--as-group="+wording.ShellWord(group))
		}
	}
	return flags
}

// contextNamespace returns the namespace of commands without -n.
func (c *connection) contextNamespace() string {
	config, err := c.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return ""
	}
	name := config.CurrentContext
	if c.flags.Context != nil && *c.flags.Context != "" {
		name = *c.flags.Context
	}
	if context, ok := config.Contexts[name]; ok && context.Namespace != "" {
		return context.Namespace
	}
	return metav1.NamespaceDefault
}

// advisor writes commands about a namespace as the user types them: flags choose namespace and cluster, and clusterFlags the
// cluster alone.
type advisor struct{ flags, clusterFlags string }

func (c *connection) advisor(namespace string) advisor {
	return advisor{flags: c.flagsFor(namespace), clusterFlags: c.flagsFor("")}
}

// plugin returns a command of this program.
func (a advisor) plugin(words ...string) string {
	return a.kubectl(append([]string{"altershield"}, words...)...)
}

// kubectl returns a command of kubectl.
func (a advisor) kubectl(words ...string) string { return command(words...) + a.flags }

// goesOn returns a command that resumes a rollout.
func (a advisor) goesOn(command string) string { return "kubectl " + command + a.flags }

// Modes of namespaces, workloads and the cluster. Without one a namespace keeps its mode, and a
// workload takes the mode of its namespace.
const (
	modeEnforce = "enforce"
	modeObserve = "observe"
	modeOff     = "off"
)

func noNamespace(name string) error {
	return remedy(fmt.Errorf("there is no namespace %s", name), "see kubectl get namespaces")
}

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
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Options are what the program is made with.
type Options struct {
	genericiooptions.IOStreams

	// Version and Commit of the program.
	Version, Commit string
	// Now is the time, as this machine has it; nil for the real one. How long something
	// has been is told by it, nothing is decided by it.
	Now func() time.Time
	// Wrap, where given, is put around the configuration of the cluster: tests count
	// requests with it.
	Wrap func(*rest.Config)
}

// ExitError ends the program with a code of its own; what it says was told already
// where Err is nil.
type ExitError struct {
	Code int
	Err  error
}

// Error says what is wrong.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap is what is wrong.
func (e *ExitError) Unwrap() error { return e.Err }

// connection is the cluster that the user's kubeconfig and flags name. It is made
// when a command first needs it. Each command and each thing that is read has its methods in a file of its own.
type connection struct {
	Options
	flags *genericclioptions.ConfigFlags
}

// config is how the cluster is reached.
func (c *connection) config() (*rest.Config, error) {
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, remedy(fmt.Errorf("read the kubeconfig: %w", err), "name one with --kubeconfig or $KUBECONFIG, and a context of it with --context")
	}
	config.UserAgent = "kubectl-altershield/" + c.Version
	// As kubectl: what admission warns of is told, and the API server limits by itself.
	config.WarningHandler = warnings{rest.NewWarningWriter(c.ErrOut, rest.WarningWriterOptions{Deduplicate: true})}
	config.QPS, config.Burst = -1, 0
	if c.Wrap != nil {
		c.Wrap(config)
	}
	return config, nil
}

// client reads from the API server, without a cache, and can watch.
func (c *connection) client() (client.WithWatch, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	made, err := client.NewWithWatch(config, client.Options{Scheme: Scheme()})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	return made, nil
}

// namespace is the one that --namespace or the context of the kubeconfig name.
func (c *connection) namespace() (string, error) {
	namespace, _, err := c.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", remedy(fmt.Errorf("read the kubeconfig: %w", err), "name one with --kubeconfig or $KUBECONFIG")
	}
	return namespace, nil
}

// Scheme knows the kinds that the commands read.
var Scheme = sync.OnceValue(func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(apiextensionsv1.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
})

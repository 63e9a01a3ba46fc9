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
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Options of the program.
type Options struct {
	genericiooptions.IOStreams

	// Version and Commit of the program.
	Version, Commit string
	// Now returns the time of this machine; nil for time.Now.
	Now func() time.Time
	// Wrap changes the configuration of the cluster, if set: tests count requests with it.
	Wrap func(*rest.Config)
}

// ExitError ends the program with a code of its own. A nil Err means that all is printed already.
type ExitError struct {
	Code int
	Err  error
}

// Error implements error.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the error itself.
func (e *ExitError) Unwrap() error { return e.Err }

// connection is the cluster that the user's kubeconfig and flags name. Each command has its methods in a file of its own.
type connection struct {
	Options
	flags *genericclioptions.ConfigFlags
	// registry has the kinds of the cluster, once they are read.
	registry *workload.Registry
	// skipped are the declared kinds that cannot be read, once that is printed.
	skipped map[string]bool
}

// config returns the configuration that reaches the cluster.
func (c *connection) config() (*rest.Config, error) {
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, remedy(fmt.Errorf("read the kubeconfig: %w", err),
			"name one with --kubeconfig or $KUBECONFIG, and a context of it with --context")
	}
	config.UserAgent = "kubectl-altershield/" + c.Version
	// As kubectl: warnings of admission are printed, and the API server alone limits requests.
	config.WarningHandler = warnings{rest.NewWarningWriter(c.ErrOut, rest.WarningWriterOptions{Deduplicate: true})}
	config.QPS, config.Burst = -1, 0
	if c.Wrap != nil {
		c.Wrap(config)
	}
	return config, nil
}

// client returns a client without a cache, which can watch.
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

// namespace returns the namespace of --namespace or of the context in the kubeconfig.
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

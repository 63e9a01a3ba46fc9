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

package bench

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/controlplane"
	"github.com/traas-stack/altershield-operator/test/wrappers"
)

var noStream = flag.Bool("no-stream", false, "BenchmarkMemory runs an API server that does not stream lists, as in Kubernetes 1.33")

const (
	// largeEach and largeBytes are the number and the size of large objects of each kind.
	largeEach  = 200
	largeBytes = 1_300_000
)

// BenchmarkMemory measures the memory of a manager beside large objects in a namespace that is not enrolled, at rest and at its
// start. With -tree it also measures another version.
func BenchmarkMemory(b *testing.B) {
	ctrl.SetLogger(logr.Discard())
	root, err := controlplane.Root(".")
	must(b, err)
	binDir, err := controlplane.Build(b.Context(), root, os.Stderr)
	must(b, err)
	o := controlplane.Options{BinDir: binDir, Nodes: -1}
	if *noStream {
		o.APIServerFlags = []string{"--feature-gates=WatchList=false"}
	}
	c, err := controlplane.Start(b.Context(), o)
	must(b, err)
	b.Cleanup(func() { must(b, c.Stop()) })
	must(b, c.RestartControllers(b.Context(), func() {
		without := measureMemory(b, c, "no large objects", root, 0)
		largeObjects(b, c)
		measureMemory(b, c, "large objects", root, without)
		if *fleetTree != "" {
			measureMemory(b, c, "large objects, the other tree", *fleetTree, without)
		}
	}))
}

// measureMemory reports the memory of a manager at rest, and how much it is above the memory without large objects. It returns
// the memory at rest, in MB.
func measureMemory(b *testing.B, c *controlplane.ControlPlane, name, root string, without float64) (rss float64) {
	b.Helper()
	t := &bed{cluster: c}
	var err error
	t.manager, err = c.InstallManager(b.Context(), controlplane.ManagerOptions{Root: root})
	must(b, err)
	b.Run(name, func(b *testing.B) {
		for b.Loop() {
			must(b, t.manager.Start(b.Context()))
			t.rest(b)
			var cpu float64
			rss, cpu = t.process(b)
			b.ReportMetric(rss, "MB-rss")
			if without > 0 {
				b.ReportMetric(rss-without, "MB-added")
			}
			b.ReportMetric(t.peak(b), "MB-peak")
			b.ReportMetric(cpu, "cpu-s")
			must(b, t.manager.Stop())
		}
	})
	return rss
}

// largeObjects creates policies and Deployments that the API server accepts.
func largeObjects(b *testing.B, c *controlplane.ControlPlane) {
	b.Helper()
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	api, err := client.New(c.RESTConfig(), client.Options{Scheme: scheme})
	must(b, err)
	must(b, api.Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "large"}}))
	var made sync.WaitGroup
	for first := range 4 {
		made.Go(func() {
			for i := first; i < largeEach && !b.Failed(); i += 4 {
				for _, o := range []client.Object{largePolicy(i), largeDeployment(i)} {
					if err := api.Create(b.Context(), o); err != nil {
						b.Errorf("create %T %s: %v", o, o.GetName(), err)
					}
				}
			}
		})
	}
	made.Wait()
}

func largePolicy(i int) client.Object {
	values := make([]string, 100)
	for j := range values {
		values[j] = fmt.Sprint(i, "-", j, strings.Repeat("x", largeBytes/len(values)))
	}
	p := &v1alpha1.DefensePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "large", Name: fmt.Sprintf("policy-%03d", i)}}
	p.Spec.WorkloadSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values},
	}}
	p.Spec.Checks = []v1alpha1.PolicyCheck{{Name: "health", PodHealth: &v1alpha1.PodHealthCheck{}}}
	return p
}

func largeDeployment(i int) client.Object {
	d := wrappers.MakeDeployment("large", fmt.Sprintf("deployment-%03d", i)).Obj()
	d.Spec.Replicas = ptr.To[int32](0)
	d.Spec.Template.Spec.Containers = []corev1.Container{
		{Name: "a", Image: fmt.Sprint(i, strings.Repeat("a", largeBytes/2))},
		{Name: "b", Image: fmt.Sprint(i, strings.Repeat("b", largeBytes/2))},
	}
	return d
}

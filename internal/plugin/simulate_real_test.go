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
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/hack/binaries"
	"github.com/traas-stack/altershield-operator/test/monitoring"
)

// replicaSetOf returns a ReplicaSet of the Deployment web, of which an image is the version.
func replicaSetOf(image string, created time.Time, revision, history string) client.Object {
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "web-" + image, CreationTimestamp: metav1.NewTime(created),
		Annotations: map[string]string{
			"deployment.kubernetes.io/revision": revision, "deployment.kubernetes.io/revision-history": history,
		},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", UID: "web", Controller: new(true)}},
	}}
	rs.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: image}}
	return rs
}

// newSimulating returns a simulation of a policy of the samples.
func newSimulating(t *testing.T, now time.Time, url string) *simulating {
	t.Helper()
	root, err := binaries.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: t.Output(), ErrOut: t.Output()}
	return &simulating{
		reading: &reading{
			connection: &connection{Options: Options{IOStreams: streams, Now: func() time.Time { return now }}}, operator: "operator",
			style: style{columns: 80},
		},
		file: filepath.Join(root, "config/samples/policies/compare.yaml"), url: url, namespace: "shop",
		endpoints: map[string]*v1alpha1.DefenseEndpoint{},
	}
}

// simulated simulates a policy of the samples on a cluster.
func simulated(t *testing.T, now time.Time, url string, objects ...client.Object) (string, *Simulation, error) {
	t.Helper()
	s := newSimulating(t, now, url)
	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	report, err := s.on(t.Context(), clusterOf(objects), nil, 6*time.Hour)
	if err != nil {
		return "", nil, err
	}
	var out bytes.Buffer
	s.style.simulation(&out, report)
	return out.String(), report, nil
}

// TestRealSimulation simulates releases whose history a Prometheus has.
func TestRealSimulation(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Prometheus")
	}
	root, err := binaries.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := monitoring.Programs(t.Context(), root, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	targets, err := monitoring.NewTargets(monitoring.TargetsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, targets.Close) })
	now := time.Now().Truncate(time.Minute)
	usual := monitoring.Traffic{Rate: 10, Errors: 0.002, Latency: 50 * time.Millisecond}
	bad := usual
	bad.Errors = 0.04
	var states strings.Builder
	// pod adds a pod that was Ready between two times before now.
	pod := func(name string, traffic monitoring.Traffic, from, until time.Duration) {
		created := now.Add(-from)
		if _, err := targets.Add("shop", name, monitoring.TargetOptions{
			Ended: true, Past: []monitoring.Period{{Start: created, End: now.Add(-until), Step: 15 * time.Second, Traffic: traffic}},
		}); err != nil {
			t.Fatal(err)
		}
		for at := created; !at.After(now.Add(-until)); at = at.Add(15 * time.Second) {
			labels := fmt.Sprintf(`{namespace="shop",pod=%q,uid=%q`, name, "uid-"+name)
			fmt.Fprintf(&states, "kube_pod_created%s} %d %d\n", labels, created.Unix(), at.UnixMilli())
			fmt.Fprintf(&states, "kube_pod_status_ready_time%s} %d %d\n", labels, created.Unix(), at.UnixMilli())
			fmt.Fprintf(&states, "kube_pod_status_ready%s,condition=\"true\"} 1 %d\n", labels, at.UnixMilli())
		}
	}
	const h, m = time.Hour, time.Minute
	for i := range 6 {
		pod(fmt.Sprintf("web-a-aaaa%d", i), usual, 5*h+30*m, 4*h-15*m)
		pod(fmt.Sprintf("web-b-bbbb%d", i), usual, 4*h, 0)
	}
	pod("web-c-ccccc", bad, 2*h, 2*h-12*m)
	pod("web-c-ddddd", bad, 2*h, 2*h-12*m)
	pod("web-b-again", usual, 2*h-12*m, 0)
	states.WriteString("# EOF\n")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		lines := strings.Split(strings.TrimSpace(states.String()), "\n")
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = w.Write([]byte(strings.Join(lines[:len(lines)-1], "\n") + "\n"))
	}))
	t.Cleanup(server.Close)
	p, err := monitoring.StartPrometheus(t.Context(), monitoring.PrometheusOptions{
		Programs: dir, Targets: targets, Interval: 5 * time.Second,
		Jobs: []monitoring.Job{{Name: "kube-state-metrics", Address: strings.TrimPrefix(server.URL, "http://"), HonorLabels: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, p.Close) })
	if err := p.Scraped(t.Context()); err != nil {
		t.Fatal(err)
	}
	out, report, err := simulated(t, now, p.URL(),
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "web", Labels: map[string]string{"app": "web"}}},
		replicaSetOf("a", now.Add(-5*h-30*m), "1", ""), replicaSetOf("b", now.Add(-4*h), "4", "2"), replicaSetOf("c", now.Add(-2*h), "3", ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + out)
	for i, want := range []SimulatedClass{ClassNone, ClassTrue, ClassOK, ClassNone} {
		if i >= len(report.Releases) || report.Releases[i].Class != want {
			t.Errorf("release %d from the newest: want %s", i, want)
		}
	}
}

func closed(t *testing.T, end func() error) {
	if err := end(); err != nil {
		t.Error(err)
	}
}

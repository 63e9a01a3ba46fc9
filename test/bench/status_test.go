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
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/plugin"
)

const (
	// statusNamespaces namespaces have workloadsPerStatus workloads each, of two pods.
	statusNamespaces    = 10
	workloadsPerStatus  = 50
	blockedPerNamespace = 1
)

// metered counts requests, and the bytes of responses.
type metered struct {
	http.RoundTripper
	requests, bytes *atomic.Int64
}

func (m metered) RoundTrip(r *http.Request) (*http.Response, error) {
	m.requests.Add(1)
	answer, err := m.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = meteredBody{answer.Body, m.bytes}
	}
	return answer, err
}

type meteredBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (b meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n.Add(int64(n))
	return n, err
}

// failOne writes a failing verdict on a pod of a succeeded release in a namespace.
func (t *bed) failOne(ctx context.Context, b *testing.B, namespace string) {
	b.Helper()
	must(b, wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		var list v1alpha1.ChangePodList
		if err := t.api.List(ctx, &list, client.InNamespace(namespace), client.Limit(1)); err != nil {
			return false, err
		}
		batch := &list.Items[0]
		batch.Status.PodResults = []v1alpha1.PodResult{{PodInfo: batch.Spec.PodInfos[0], Verdict: "fail", Message: "find error"}}
		return t.api.Status().Update(ctx, batch) == nil, nil
	}))
	must(b, wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(ctx context.Context) (bool, error) {
		var list v1alpha1.ChangeWorkloadList
		err := t.api.List(ctx, &list, client.InNamespace(namespace))
		for i := range list.Items {
			if list.Items[i].Status.Status == v1alpha1.ChangeWorkloadSuspend {
				return true, nil
			}
		}
		return false, err
	}))
}

// BenchmarkStatus runs the plugin in a cluster of 500 defended workloads of two pods, ten of them blocked. It reports the time,
// the requests, and the bytes of responses.
func BenchmarkStatus(b *testing.B) {
	t := newBed(b, false)
	ctx := b.Context()
	var namespaces []string
	for range statusNamespaces {
		namespaces = append(namespaces, t.namespace(b, true))
	}
	for _, ns := range namespaces {
		t.release(ctx, b, ns, true, workloadsPerStatus, 2)
		for range blockedPerNamespace {
			t.failOne(ctx, b, ns)
		}
	}
	all, blocked := statusNamespaces*workloadsPerStatus, statusNamespaces*blockedPerNamespace
	for _, bench := range []struct {
		args string
		want string
	}{
		{"status -A", fmt.Sprintf("%d workloads in all namespaces: %d need attention, %d are fine.", all, blocked, all-blocked)},
		{"status -A --all", fmt.Sprintf("%d workloads in all namespaces", all)},
		{
			"status -n " + namespaces[0],
			fmt.Sprintf("%d workloads in %s: %d needs attention", workloadsPerStatus, namespaces[0], blockedPerNamespace),
		},
		{"status deployment/d07 -n " + namespaces[0], "deployment/d07"},
		{"history deployment/d07 -n " + namespaces[0], "deployment/d07"},
	} {
		b.Run(strings.ReplaceAll(bench.args, namespaces[0], "NAMESPACE"), func(b *testing.B) {
			var requests, sent atomic.Int64
			for b.Loop() {
				var out, errOut bytes.Buffer
				code := plugin.Run(ctx, plugin.Options{
					IOStreams: genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &errOut},
					Wrap: func(c *rest.Config) {
						c.Wrap(func(rt http.RoundTripper) http.RoundTripper { return metered{rt, &requests, &sent} })
					},
				}, append(strings.Fields(bench.args), "--kubeconfig", t.cluster.Kubeconfig()))
				if code != 0 || !strings.Contains(out.String(), bench.want) {
					b.Fatalf("exit code %d, no %q\n%s%s", code, bench.want, out.String(), errOut.String())
				}
			}
			b.ReportMetric(float64(requests.Load())/float64(b.N), "requests/op")
			b.ReportMetric(float64(sent.Load())/float64(b.N)/1024, "KiB-read/op")
		})
	}
}

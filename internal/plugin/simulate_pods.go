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
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/endpoint"
	"github.com/traas-stack/altershield-operator/internal/judge"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/slots"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// pastSeries has the history of pods, from kube-state-metrics.
type pastSeries struct {
	clients  *endpoint.Clients
	endpoint *v1alpha1.DefenseEndpoint
}

const (
	// podsEvery is the step by which pods are seen, podsBefore and podsAfter the time around the start of a release.
	podsEvery             = 15 * time.Second
	podsBefore, podsAfter = 5 * time.Minute, time.Hour
	podsTimeout           = 30 * time.Second
	// simulatedQPS is the default rate of queries.
	simulatedQPS = 20
)

// connect finds the Prometheus of each check.
func (s *simulating) connect(ctx context.Context, live client.Reader) error {
	secrets := tokenFile{}
	if s.tokenFile != "" {
		data, err := os.ReadFile(s.tokenFile)
		if err != nil {
			return fmt.Errorf("--prometheus-token-file: %w", err)
		}
		secrets.token = data
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	clients := endpoint.NewClients(secrets, clock.RealClock{}, dialer.DialContext)
	for i := range s.policy.Spec.Checks {
		name := policy.PrometheusOf(&s.policy.Spec.Checks[i])
		if name == "" || s.endpoints[name] != nil {
			continue
		}
		e, err := s.endpointOf(ctx, live, name)
		if err != nil {
			return err
		}
		if err := clients.Reach(ctx, e); err != nil {
			return remedy(fmt.Errorf("the Prometheus at %s cannot be asked from here: %w", e.Spec.URL, err), forwarding(e.Spec.URL))
		}
		s.endpoints[name] = e
		if s.history == nil {
			s.history = &pastSeries{clients, e}
		}
	}
	s.replay = checks.NewReplay(clients, clockOf(s.Now), s.operator)
	return nil
}

// endpointOf returns the endpoint of a check, without Secrets.
func (s *simulating) endpointOf(ctx context.Context, live client.Reader, name string) (*v1alpha1.DefenseEndpoint, error) {
	e := &v1alpha1.DefenseEndpoint{}
	err := live.Get(ctx, client.ObjectKey{Namespace: s.operator, Name: name}, e)
	known := apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || meta.IsNoMatchError(err)
	switch {
	case err != nil && !known:
		return nil, fmt.Errorf("get defenseendpoint %s/%s: %w", s.operator, name, err)
	case err != nil && s.url == "":
		return nil, remedy(fmt.Errorf("the address of the endpoint %s is not known: %s", name, reasonOf(err)), forwarding(""))
	case err == nil && e.Spec.Type != v1alpha1.EndpointPrometheus:
		return nil, remedy(fmt.Errorf("the endpoint %s is of type %s", name, e.Spec.Type), "name an endpoint of type Prometheus in the check")
	case s.url != "":
		e.Spec.Type, e.Spec.URL, e.Spec.Auth, e.Spec.TLS = v1alpha1.EndpointPrometheus, s.url, nil, nil
		if s.tokenFile != "" {
			e.Spec.Auth = &v1alpha1.EndpointAuth{SecretRef: &v1alpha1.SecretReference{Name: "file"}}
		}
	case e.Spec.Auth != nil || e.Spec.TLS != nil && (e.Spec.TLS.CASecretRef != nil || e.Spec.TLS.CertSecretRef != nil):
		return nil, remedy(fmt.Errorf("the endpoint %s has a Secret, and this command reads no Secrets", name), forwarding(e.Spec.URL))
	}
	if u, err := url.Parse(e.Spec.URL); err != nil || u.Host == "" || u.User != nil {
		return nil, remedy(fmt.Errorf("--prometheus %q is no URL", s.url), "give it as in http://localhost:9090, without a user")
	}
	e.Name, e.UID = name, types.UID(name)
	if e.Spec.Limits == nil {
		e.Spec.Limits = &v1alpha1.EndpointLimits{QPS: simulatedQPS}
	}
	return e, nil
}

// inCluster matches the host of a service.
var inCluster = regexp.MustCompile(`^([a-z0-9-]+)\.([a-z0-9-]+)(\.svc(\..*)?)?$`)

// forwarding returns how to reach a Prometheus in the cluster.
func forwarding(address string) string {
	service, namespace, port := "NAME", "NAMESPACE", "9090"
	if u, err := url.Parse(address); err == nil {
		if of := inCluster.FindStringSubmatch(u.Hostname()); of != nil {
			service, namespace, port = of[1], of[2], u.Port()
		}
	}
	if port == "" {
		port = "80"
	}
	return fmt.Sprintf("kubectl port-forward -n %s service/%s 9090:%s, and give --prometheus http://localhost:9090; "+
		"for a token, --prometheus-token-file FILE", namespace, service, port)
}

// tokenFile is the Secret of an endpoint, from a file of the user. It reads nothing of the cluster.
type tokenFile struct {
	client.Reader
	token []byte
}

// Get implements client.Reader.
func (f tokenFile) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	secret, ok := o.(*corev1.Secret)
	if !ok || f.token == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
	}
	secret.Labels, secret.Data = map[string]string{v1alpha1.EndpointSecretLabel: "true"}, map[string][]byte{"token": f.token}
	return nil
}

// clockOf is a clock with the time of the program.
type clockOf func() time.Time

// Now implements clock.PassiveClock.
func (c clockOf) Now() time.Time { return c() }

// Since implements clock.PassiveClock.
func (c clockOf) Since(t time.Time) time.Duration { return c().Sub(t) }

// seenPod is a pod that was Ready from its ReadySince until a time.
type seenPod struct {
	workload.Pod
	until time.Time
}

// pastPods are the pods around the start of a release.
type pastPods struct {
	// fresh are the pods of the release by the time at which they were Ready.
	fresh []workload.Pod
	old   []seenPod
	// ended is the start of the next release, or the last time at which a pod of this release was Ready. It is zero without a next release,
	// and if it is not known.
	ended time.Time
}

// pastBatch is a batch of one pod, or all pods of the release with the number 1.
type pastBatch struct {
	n     int
	pods  []workload.Pod
	began time.Time
}

// batches returns the batches after which a check is decided: those of comparisons, for other checks too.
func (p *pastPods) batches(c *policy.Check, minReady time.Duration) (all []pastBatch) {
	if c.Stage == v1alpha1.StageReleasePost {
		return []pastBatch{{1, p.fresh, p.fresh[len(p.fresh)-1].ReadySince.Add(minReady)}}
	}
	for i := range p.fresh {
		if judge.IsLook(i + 1) {
			all = append(all, pastBatch{i + 1, p.fresh[i : i+1], p.fresh[i].ReadySince.Add(minReady)})
		}
	}
	return all
}

// oldAt returns the old pods that were Ready at a time.
func (p *pastPods) oldAt(at time.Time) (old []workload.Pod) {
	for i := range p.old {
		if pod := &p.old[i]; !pod.ReadySince.After(at) && !pod.until.Before(at) {
			old = append(old, pod.Pod)
		}
	}
	return old
}

// namesOfPods returns the pattern of the names of the pods of a release, as PromQL writes it, without its quotes.
func (p *past) namesOfPods() string {
	name := p.workload.Name
	if p.workload.Kind() == "deployment" {
		name = p.name
	}
	const longest = 58 // the API server cuts longer names
	return (name + "-")[:min(len(name)+1, longest)] + "[a-z0-9]+"
}

// created returns the query of the times of creation of pods.
func created(namespace string, names ...string) string {
	return fmt.Sprintf("kube_pod_created{namespace=%q,pod=~%q}", namespace, strings.ReplaceAll(strings.Join(names, "|"), ".", `\.`))
}

// firstPod returns when the first pod of a release was created; zero if unknown, with the problem if Prometheus did not answer.
func (h *pastSeries) firstPod(ctx context.Context, p *past, now time.Time) (at time.Time, problem string) {
	if p.workload.Kind() != "deployment" {
		return time.Time{}, "" // pods of other kinds have the names of earlier pods
	}
	if !p.before.IsZero() {
		now = p.before
	}
	query := fmt.Sprintf("min(min_over_time(%s[%ds]) > %d)", created(p.workload.Namespace, p.namesOfPods()),
		int(now.Sub(p.after).Seconds())+1, p.after.Unix())
	samples, err := h.clients.Query(ctx, h.endpoint, slots.Work{Namespace: p.workload.Namespace}, query, now, podsTimeout)
	switch {
	case err != nil:
		_, message := endpoint.Sentence(h.endpoint, err)
		return time.Time{}, "the start of the release is not known: " + message
	case len(samples) != 1:
		return time.Time{}, ""
	}
	return time.Unix(int64(samples[0].Value), 0), ""
}

// pods returns the pods around the start of a release, or why they are not known.
func (h *pastSeries) pods(ctx context.Context, p *past, now time.Time) (*pastPods, string) {
	isDeployment := p.workload.Kind() == "deployment"
	switch {
	case p.began.IsZero():
		return nil, cmp.Or(p.problem, "the start of the release is not known")
	case isDeployment && p.name == "":
		return nil, "its ReplicaSet was removed: raise spec.revisionHistoryLimit"
	}
	names := []string{p.namesOfPods()}
	if isDeployment && p.previous != nil && p.previous.name != "" {
		before := past{occurrence: *p.previous, workload: p.workload}
		names = append(names, before.namesOfPods())
	}
	end := p.began.Add(podsAfter)
	if p.next != nil && !p.next.began.IsZero() && p.next.began.Before(end) {
		end = p.next.began
	}
	if end.After(now) {
		end = now
	}
	all := created(p.workload.Namespace, names...)
	ask := func(query string) (model.Matrix, error) {
		return h.clients.QueryRange(ctx, h.endpoint, slots.Work{Namespace: p.workload.Namespace}, query,
			promv1.Range{Start: p.began.Add(-podsBefore), End: end, Step: podsEvery}, podsTimeout)
	}
	matrix, err := ask(all + " and on (namespace, pod, uid) " +
		strings.Replace(all, "kube_pod_created{", `kube_pod_status_ready{condition="true",`, 1) + " == 1")
	var exact model.Matrix
	if err == nil {
		exact, err = ask(strings.Replace(all, "kube_pod_created{", "kube_pod_status_ready_time{", 1))
	}
	if err != nil {
		_, message := endpoint.Sentence(h.endpoint, err)
		return nil, "its pods are not known: " + message
	}
	own, err := regexp.Compile("^" + p.namesOfPods() + "$")
	if err != nil {
		return nil, "its pods are not known: " + err.Error()
	}
	found := podsIn(matrix, exact, func(name string, created time.Time) bool {
		if isDeployment {
			return own.MatchString(name)
		}
		return !created.Before(p.began.Truncate(time.Second))
	})
	switch {
	case p.next != nil && !p.next.began.IsZero():
		found.ended = p.next.began
	case p.next == nil, !found.ended.Before(end.Add(-podsEvery)):
		found.ended = time.Time{} // its pods were Ready for longer than was asked
	}
	switch {
	case len(found.fresh) > 0:
		return found, ""
	case len(found.old) > 0:
		return nil, "no pod of it became Ready within an hour, or before it was replaced"
	default:
		return nil, "its pods are not known: Prometheus has no kube_pod_status_ready of that time (retention, or no kube-state-metrics)"
	}
}

// podsIn returns the pods of an answer, of which the values are the times of their creation. exact has the times since when they were
// Ready; versions of kube-state-metrics before 2.6 do not know them.
func podsIn(matrix, exact model.Matrix, isNew func(name string, created time.Time) bool) *pastPods {
	found := &pastPods{}
	// A pod has several series if kube-state-metrics was restarted.
	known := map[string]*seenPod{}
	for _, series := range matrix {
		if len(series.Values) == 0 {
			continue
		}
		first, last := series.Values[0], series.Values[len(series.Values)-1]
		name, created := string(series.Metric["pod"]), time.Unix(int64(first.Value), 0)
		since, until := first.Timestamp.Time(), last.Timestamp.Time()
		if pod := known[fmt.Sprint(name, created.Unix())]; pod != nil {
			pod.ReadySince = slices.MinFunc([]time.Time{pod.ReadySince, since}, time.Time.Compare)
			pod.until = slices.MaxFunc([]time.Time{pod.until, until}, time.Time.Compare)
			continue
		}
		known[fmt.Sprint(name, created.Unix())] = &seenPod{workload.Pod{Name: name, Created: created, Ready: true, ReadySince: since}, until}
	}
	times := map[string][]time.Time{}
	for _, series := range exact {
		name := string(series.Metric["pod"])
		for i, sample := range series.Values {
			if i == 0 || sample.Value != series.Values[i-1].Value {
				times[name] = append(times[name], time.Unix(int64(sample.Value), 0))
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(known)) {
		pod := known[key]
		for _, since := range times[pod.Name] {
			if since.Before(pod.ReadySince) && !since.Before(pod.Created) {
				pod.ReadySince = since
			}
		}
		if isNew(pod.Name, pod.Created) {
			found.fresh = append(found.fresh, pod.Pod)
			found.ended = slices.MaxFunc([]time.Time{found.ended, pod.until}, time.Time.Compare)
		} else {
			found.old = append(found.old, *pod)
		}
	}
	slices.SortFunc(found.fresh, func(a, b workload.Pod) int {
		return cmp.Or(a.ReadySince.Compare(b.ReadySince), strings.Compare(a.Name, b.Name))
	})
	return found
}

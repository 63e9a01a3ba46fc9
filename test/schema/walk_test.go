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

package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/plugin/manifest"
	"github.com/traas-stack/altershield-operator/internal/policy"
)

// everyField has, in policies that are accepted, every field of the spec.
var everyField = []string{
	"mode: Observe\nworkloadSelector: {matchLabels: {app: web}, matchExpressions: [{key: app, operator: In, values: [web]}]}\n" +
		"namespaceSelector: {matchLabels: {team: a}, matchExpressions: [{key: team, operator: In, values: [a]}]}\n" +
		"suggestion: look\nonNoData: Fail\nonError: Fail\nhold: {until: FirstBatch, maxDuration: 30m}\n" +
		checkOf("stage: BatchPost\nmode: Observe\ndelay: 10s\nwait: false\ndeadline: 20m\n"+
			"podHealth: {duration: 10m, maxRestarts: 0, maxReadinessLosses: 2, readyAtEnd: false, failOnOOM: false, maxFailedPods: 3, "+
			"compareOldPods: false}"),
	checkOf("timeout: 60s\nonError: Pass\nprobe: {target: Service, service: web, http: {port: 80, path: /a, scheme: HTTPS, expect: '204'}, " +
		"interval: 1s, successes: 60, failures: 1}"),
	checkOf("probe: {grpc: {port: 9000, service: shop.v1.Shop}}"),
	checkOf("probe: {tcp: {port: 80}}"),
	checkOf("cel: {forEach: Batch, variables: [{name: c, expression: 'pods[0]'}], rules: [{expression: 'true', message: no}]}"),
	checkOf("altershield: {}"),
	checkOf("prometheus: {endpointRef: {name: prom}, query: up, failWhen: value > 1.0, interval: 30s, count: 4, failures: 2, empty: Zero}"),
	checkOf("service: {endpointRef: {name: gate}, protocol: JSON, invoke: Polling, parameters: {suite: smoke}, failWhen: '!body.ok'}"),
	checkOf("job: {cronJob: smoke}"),
	checkOf(compareOf("numerator: b, denominator: c, direction: Increase, minChangePercent: 10, minChange: 5m, criticalChangePercent: 100",
		"presets: [Auto, cpu]", "window: 5m", "slice: 1m", "warmUp: 1m", "maxWindow: 10m", "falsePositivesPerMille: 10", "confirm: true",
		"baseline: Auto")),
	checkOf(compareOf("query: a, minChange: 1")),
	checkOf("alerts: {endpointRef: {name: prom}, matchers: ['severity=\"page\"'], interval: 30s, duration: 15m}"),
	"freezes: [{name: weekend, schedule: 0 16 * * 5, duration: 64h, timeZone: UTC, action: Deny}, " +
		"{name: fair, from: '2026-12-01T00:00:00Z', until: '2026-12-02T00:00:00Z', action: Warn}]",
	"notify: [{endpointRef: {name: am}, events: [Failed, WouldFail, RolledBack, Blocked, FreezeBroken]}]",
}

// badValues take the place of a field, of whatever type it is.
var badValues = []any{
	nil, "", true, int64(-1), int64(1) << 62, 1.5, strings.Repeat("a", 100_000), "\u202e\u0000\U0001F600é", "-5m", "999999h", "0s", "1e9%",
	[]any{}, []any{nil}, slices.Repeat([]any{"a"}, 2000), map[string]any{}, map[string]any{"\u202e": "a"},
}

// place is a field of an object.
type place []any

func (p place) String() string {
	var s strings.Builder
	for _, key := range p {
		switch key := key.(type) {
		case string:
			s.WriteString("." + key)
		default:
			fmt.Fprintf(&s, "[%d]", key)
		}
	}
	return strings.TrimPrefix(s.String(), ".")
}

// names lists the fields on the way to a place.
func (p place) names() (names []string) {
	for _, key := range p {
		if name, ok := key.(string); ok {
			names = append(names, name)
		}
	}
	return names
}

// placesOf lists all fields below a value.
func placesOf(value any, at place) (places []place) {
	switch value := value.(type) {
	case map[string]any:
		for key, of := range value {
			below := append(slices.Clone(at), key)
			places = append(append(places, below), placesOf(of, below)...)
		}
	case []any:
		for i, of := range value {
			below := append(slices.Clone(at), i)
			places = append(append(places, below), placesOf(of, below)...)
		}
	}
	return places
}

// put writes a value to a place.
func (p place) put(in any, value any) {
	for _, key := range p[:len(p)-1] {
		switch key := key.(type) {
		case string:
			in = in.(map[string]any)[key] //nolint:errcheck // the place exists
		case int:
			in = in.([]any)[key] //nolint:errcheck // the place exists
		}
	}
	switch key := p[len(p)-1].(type) {
	case string:
		in.(map[string]any)[key] = value //nolint:errcheck // the place exists
	case int:
		in.([]any)[key] = value //nolint:errcheck // the place exists
	}
}

// fieldsOf lists the fields of a schema that have a type, by their names from the top.
func fieldsOf(s *apiextensionsv1.JSONSchemaProps, at string) (fields []string) {
	for name, of := range s.Properties {
		below := strings.TrimPrefix(at+"."+name, ".")
		fields = append(append(fields, below), fieldsOf(&of, below)...)
	}
	if s.Items != nil && s.Items.Schema != nil {
		fields = append(fields, fieldsOf(s.Items.Schema, at)...)
	}
	return fields
}

// read returns the error of the plugin about a policy.
func read(ctx context.Context, p *unstructured.Unstructured) error {
	data, err := p.MarshalJSON()
	if err != nil {
		return err
	}
	decoded := &unstructured.Unstructured{}
	if err := decoded.UnmarshalJSON(data); err != nil {
		return err
	}
	_, err = manifest.Policy(ctx, decoded)
	return err
}

// try writes each bad value to each field of the spec of an object.
func try(ctx context.Context, o *unstructured.Unstructured, accepted func(*unstructured.Unstructured) string) (problems []string) {
	var all sync.WaitGroup
	var mu sync.Mutex
	var tried, took atomic.Int64
	places := make(chan place)
	for range 8 {
		all.Go(func() {
			for at := range places {
				for _, bad := range badValues {
					changed := o.DeepCopy()
					at.put(changed.Object, runtime.DeepCopyJSONValue(bad))
					problem := ""
					tried.Add(1)
					err := api.Create(ctx, changed.DeepCopy(), client.DryRunAll)
					local := err
					if changed.GetKind() == "DefensePolicy" {
						local = read(ctx, changed)
					}
					switch {
					case (local == nil) != (err == nil) && !runtime.IsStrictDecodingError(local): // fields are pruned, not refused
						problem = fmt.Sprintf("the plugin says %v, and the API server %v", local, err)
					case err == nil:
						took.Add(1)
						problem = accepted(changed)
					case !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err):
						problem = "refused otherwise: " + err.Error()
					case !slices.ContainsFunc(at.names()[1:], func(name string) bool { return strings.Contains(err.Error(), name) }):
						problem = "refused without the name of the field: " + err.Error()
					}
					if problem != "" {
						mu.Lock()
						problems = append(problems, fmt.Sprintf("%s = %.40v: %.400s", at, bad, problem))
						mu.Unlock()
					}
				}
			}
		})
	}
	defer func() { AddReportEntry("values", fmt.Sprintf("%d tried, %d accepted", tried.Load(), took.Load())) }()
	for _, at := range placesOf(o.Object["spec"], place{"spec"}) {
		places <- at
	}
	close(places)
	all.Wait()
	return problems
}

var _ = Describe("any value of any field", func() {
	It("of a policy is refused with the name of the field, or the operator says what it makes of it", func(ctx SpecContext) {
		var known []string
		for _, spec := range everyField {
			p := policyOf("policy", spec)
			for _, at := range placesOf(p.Object["spec"], nil) {
				known = append(known, strings.Join(at.names(), "."))
			}
			Expect(try(ctx, p, func(o *unstructured.Unstructured) string {
				typed := &v1alpha1.DefensePolicy{}
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, typed); err != nil {
					return "cannot be read: " + err.Error()
				}
				judged := policy.Judge(typed, "default", "")
				if problem := policy.Accepted(typed, "default"); problem != "" && !strings.Contains(problem, "spec.") {
					return fmt.Sprintf("not accepted, without the name of the field: %s (%+v)", problem, judged)
				}
				return ""
			})).To(BeEmpty())
		}

		By("covering each field of the schema")
		var crd apiextensionsv1.CustomResourceDefinition
		Expect(api.Get(ctx, types.NamespacedName{Name: "defensepolicies." + v1alpha1.GroupVersion.Group}, &crd)).To(Succeed())
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		for _, field := range fieldsOf(&spec, "") {
			Expect(known).To(ContainElement(field), "a field that no policy of everyField has")
		}
	}, SpecTimeout(10*time.Minute))

	It("of a setting is refused with the name of the field", func(ctx SpecContext) {
		o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"type": "isBlockingUp", "enable": true, "content": "1"}}}
		o.SetAPIVersion(v1alpha1.GroupVersion.String())
		o.SetKind("OpsConfigInfo")
		o.SetNamespace("default")
		o.SetName("blocking")
		Expect(try(ctx, o, func(o *unstructured.Unstructured) string {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &v1alpha1.OpsConfigInfo{}); err != nil {
				return "cannot be read: " + err.Error()
			}
			return ""
		})).To(BeEmpty())
	}, SpecTimeout(5*time.Minute))
})

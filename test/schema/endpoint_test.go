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
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// endpointOf returns an endpoint with this spec, beside its type and url.
func endpointOf(spec string) client.Object {
	e := policyOf("prometheus", spec)
	e.SetKind("DefenseEndpoint")
	return e
}

const base = "type: Prometheus\nurl: https://thanos.monitoring:9091/select/0/prometheus\n"

var _ = DescribeTable("endpoints that are accepted", func(ctx SpecContext, spec string) {
	Expect(api.Create(ctx, endpointOf(spec), client.DryRunAll)).To(Succeed())
},
	Entry("the least", "type: Prometheus\nurl: http://a"),
	Entry("an address", "type: Alertmanager\nurl: 'http://[fd00::1]:9093/'"),
	Entry("all", base+"allowedNamespaces: {from: Selector, selector: {matchLabels: {team: shop}}}\nauth: {secretRef: {name: login}}\n"+
		"tls: {caSecretRef: {name: ca}, certSecretRef: {name: pair}, serverName: thanos.example.com}\nheaders: {X-Scope-OrgID: a|b}\n"+
		"prometheus: {podLabel: k8s_pod_name, namespaceLabel: _ns, scrapeInterval: 15s}\n"+
		"limits: {qps: 100, concurrency: 32, responseBytes: 64Mi}"),
	Entry("tokens", base+"auth: {oauth2: {secretRef: {name: login}, tokenURL: 'https://login.example.com/token', scopes: [a, b]}}"),
)

var _ = DescribeTable("endpoints that are refused", func(ctx SpecContext, spec string, wants ...string) {
	err := api.Create(ctx, endpointOf(spec), client.DryRunAll)
	Expect(err).To(HaveOccurred())
	for _, want := range wants {
		Expect(err.Error()).To(ContainSubstring(want))
	}
},
	Entry("another protocol", "type: Prometheus\nurl: file:///etc/passwd", "spec.url"),
	Entry("a password in the address", "type: Prometheus\nurl: http://me:secret@a", "spec.url"),
	Entry("a query in the address", "type: Prometheus\nurl: http://a/b?c=d", "spec.url"),
	Entry("a fragment in the address", "type: Prometheus\nurl: 'http://a/b#c'", "spec.url"),
	Entry("an escape in the address", "type: Prometheus\nurl: http://a/%2e%2e/b", "spec.url"),
	Entry("a long address", "type: Prometheus\nurl: http://"+strings.Repeat("a", 600), "spec.url", "Too long"),
	Entry("an unknown type", "type: Graphite\nurl: http://a", "spec.type", "Unsupported value"),
	Entry("a selector that does not count", base+"allowedNamespaces: {from: All, selector: {}}", "spec.allowedNamespaces.selector"),
	Entry("no selector", base+"allowedNamespaces: {from: Selector}", "spec.allowedNamespaces.selector", "give both, or neither"),
	Entry("two ways to log in", base+"auth: {secretRef: {name: a}, oauth2: {secretRef: {name: a}, tokenURL: http://a}}",
		"spec.auth", "exactly one"),
	Entry("a Secret of another namespace", base+"auth: {secretRef: {name: shop/login}}", "spec.auth.secretRef.name"),
	Entry("two lines in a header", base+`headers: {a: "b\r\nc: d"}`, "spec.headers"),
	Entry("nine headers", base+"headers: {a: a, b: a, c: a, d: a, e: a, f: a, g: a, h: a, i: a}", "spec.headers"),
	Entry("a label that is the name", base+"prometheus: {namespaceLabel: __name__}", "spec.prometheus.namespaceLabel"),
	Entry("a label that is a query", base+"prometheus: {podLabel: 'a=\"b\"'}", "spec.prometheus.podLabel"),
	Entry("a long scrape interval", base+"prometheus: {scrapeInterval: 6m}", "spec.prometheus.scrapeInterval", "from 1s to 5m"),
	Entry("no calls", base+"limits: {qps: 0}", "spec.limits.qps"),
	Entry("too many calls", base+"limits: {concurrency: 33}", "spec.limits.concurrency"),
	Entry("large answers", base+"limits: {responseBytes: 65Mi}", "spec.limits.responseBytes"),
)

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

// Package endpoint calls the services that DefenseEndpoints describe.
//
//   - accept.go: whether an endpoint is correct, and who may use it
//   - client.go: a call, with its limits
//   - post.go: a request to a service
//   - send.go: alerts to an Alertmanager
//   - credentials.go: the Secrets of an endpoint
//
// An administrator chose the address, and a tenant chooses the query. So no answer gets into an
// error except the sentence of Prometheus about the query, and no error has credentials.
package endpoint

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/prometheus/common/config"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// Defaults of the API, for objects without the defaults of the API server.
const (
	defaultScrapeInterval = 30 * time.Second
	defaultQPS            = 5
	defaultConcurrency    = 4
	defaultResponseBytes  = 4 << 20
)

var headerName = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

// Problem returns why the spec of an endpoint cannot be used; empty if it can. It does not repeat
// validations of the CRD schema.
func Problem(e *v1alpha1.DefenseEndpoint) string {
	for _, name := range slices.Sorted(maps.Keys(e.Spec.Headers)) {
		_, reserved := config.ReservedHeaders[http.CanonicalHeaderKey(name)]
		switch {
		case !headerName.MatchString(name):
			return fmt.Sprintf("spec.headers: the name %.64q is not valid: use at most 64 letters, digits and hyphens", name)
		case reserved || http.CanonicalHeaderKey(name) == "Cookie":
			return fmt.Sprintf("spec.headers: %s is set by the operator: use auth for credentials", name)
		}
	}
	if from := e.Spec.AllowedNamespaces; from != nil && from.Selector != nil {
		if _, err := metav1.LabelSelectorAsSelector(from.Selector); err != nil {
			return fmt.Sprintf("spec.allowedNamespaces.selector: %v", err)
		}
	}
	return ""
}

// Allows reports whether policies of a namespace may use an endpoint.
func Allows(e *v1alpha1.DefenseEndpoint, namespace string, namespaceLabels map[string]string) bool {
	from := e.Spec.AllowedNamespaces
	switch {
	case namespace == e.Namespace, from == nil, cmp.Or(from.From, v1alpha1.NamespacesAll) == v1alpha1.NamespacesAll:
		return true
	case from.From != v1alpha1.NamespacesSelector || from.Selector == nil:
		return false
	default:
		selector, err := metav1.LabelSelectorAsSelector(from.Selector)
		return err == nil && selector.Matches(labels.Set(namespaceLabels))
	}
}

// Series describes the series of a Prometheus.
type Series struct {
	PodLabel, NamespaceLabel string
	ScrapeInterval           time.Duration
}

// SeriesOf returns the labels and the interval of a Prometheus, with the defaults of the API.
func SeriesOf(e *v1alpha1.DefenseEndpoint) Series {
	s := Series{"pod", "namespace", defaultScrapeInterval}
	if p := e.Spec.Prometheus; p != nil {
		s.PodLabel, s.NamespaceLabel = cmp.Or(p.PodLabel, s.PodLabel), cmp.Or(p.NamespaceLabel, s.NamespaceLabel)
		if p.ScrapeInterval != nil {
			s.ScrapeInterval = p.ScrapeInterval.Duration
		}
	}
	return s
}

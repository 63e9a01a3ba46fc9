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

package certificates

import (
	"encoding/base64"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// Target is the Service by which API servers call the webhooks.
type Target struct {
	// Namespace of the operator and of its Service.
	Namespace string
	Service   string
	Port      int32
}

// Configuration is a wanted webhook configuration. It is unstructured, so that fields that this build does not know stay.
type Configuration struct {
	template *unstructured.Unstructured
}

// NewConfigurations completes the configurations of the webhooks, one mutating and one validating. It adds their names, the
// Service, the excluded namespaces, and the defaults of the API server, so that a correct configuration is recognized.
func NewConfigurations(wanted []runtime.Object, mutating, validating string, target Target) ([]Configuration, error) {
	var all []Configuration
	for _, object := range wanted {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return nil, fmt.Errorf("webhook configurations: %w", err)
		}
		u := &unstructured.Unstructured{Object: content}
		if u.SetName(validating); u.GetKind() == "MutatingWebhookConfiguration" {
			u.SetName(mutating)
		}
		for _, hook := range webhooks(u) {
			if err := complete(hook, target); err != nil {
				return nil, fmt.Errorf("webhook configurations: %s: %w", u.GetKind(), err)
			}
		}
		all = append(all, Configuration{template: u})
	}
	return all, nil
}

// Excluded returns an expression that excludes the namespaces of the system and of the operator, also if they are enrolled:
// the webhooks must not deny the repair of an outage there.
func Excluded(operator string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{
		Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn,
		Values: append(workload.SystemNamespaces(), operator),
	}
}

// complete adds the missing fields of a webhook.
func complete(hook map[string]any, target Target) error {
	service, found, err := unstructured.NestedMap(hook, "clientConfig", "service")
	if err != nil || !found {
		return fmt.Errorf("webhook %v is called through no service", hook["name"])
	}
	service["namespace"], service["name"], service["port"] = target.Namespace, target.Service, int64(target.Port)
	hook["clientConfig"] = map[string]any{"service": service}
	if hook["objectSelector"] == nil {
		hook["objectSelector"] = map[string]any{}
	}
	rules, _ := hook["rules"].([]any)
	for _, r := range rules {
		if rule, ok := r.(map[string]any); ok && rule["scope"] == nil {
			rule["scope"] = "*"
		}
	}
	selector, err := selectorOf(hook)
	if err != nil {
		return err
	}
	exclude(selector, Excluded(target.Namespace))
	return setSelector(hook, selector)
}

// Object returns an empty configuration of the kind and name.
func (c Configuration) Object() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(c.template.GroupVersionKind())
	u.SetName(c.template.GetName())
	return u
}

// Create returns the configuration with a bundle. If the bundle is empty, another program injects one.
func (c Configuration) Create(bundle []byte) *unstructured.Unstructured {
	u := c.template.DeepCopy()
	for _, hook := range webhooks(u) {
		if len(bundle) > 0 {
			setBundle(hook, bundle)
		}
	}
	return u
}

// Inject returns a copy of a configuration in which every webhook that is called through a Service carries the bundle.
// Nothing else changes, so that replicas of different versions agree.
func Inject(live *unstructured.Unstructured, bundle []byte) *unstructured.Unstructured {
	next := live.DeepCopy()
	for _, hook := range webhooks(next) {
		if _, found, err := unstructured.NestedMap(hook, "clientConfig", "service"); found && err == nil {
			setBundle(hook, bundle)
		}
	}
	return next
}

// Restore returns a copy of a configuration with the wanted webhooks. Labels, annotations, further excluded namespaces, and
// fields that this build does not know stay. If bundle is nil, another program owns the bundles: each stays, and a webhook
// that was removed gets the bundle of another webhook.
func (c Configuration) Restore(live *unstructured.Unstructured, bundle []byte) (*unstructured.Unstructured, error) {
	next := live.DeepCopy()
	current := map[string]map[string]any{}
	var others any
	for _, hook := range webhooks(next) {
		if name, ok := hook["name"].(string); ok {
			current[name] = hook
		}
		if carried := bundleOf(hook); others == nil && carried != "" {
			others = carried
		}
	}
	var restored []any
	for _, want := range webhooks(c.template.DeepCopy()) {
		name, _ := want["name"].(string)
		carried := others
		switch {
		case bundle != nil:
			carried = base64.StdEncoding.EncodeToString(bundle)
		case current[name] != nil:
			carried = bundleOf(current[name])
		}
		hook, err := restore(current[name], want)
		if err != nil {
			return nil, fmt.Errorf("webhook %s: %w", name, err)
		}
		if config, ok := hook["clientConfig"].(map[string]any); ok && carried != nil {
			config["caBundle"] = carried
		}
		restored = append(restored, hook)
	}
	delete(next.Object, "webhooks") // the API server shows no empty list
	if len(restored) > 0 {
		next.Object["webhooks"] = restored
	}
	return next, nil
}

// restore restores one webhook.
func restore(hook, want map[string]any) (map[string]any, error) {
	if hook == nil {
		return want, nil
	}
	// A selector that cannot be read, or selects other namespaces, is replaced. Its exclusions stay.
	wanted, err := selectorOf(want)
	if err != nil {
		return nil, err
	}
	selector, err := selectorOf(hook)
	if err == nil {
		for _, e := range selector.MatchExpressions {
			if isExclusion(e) {
				exclude(wanted, e)
			}
		}
	}
	if err != nil || !selectsTheSame(selector, wanted) {
		if err := setSelector(hook, wanted); err != nil {
			return nil, err
		}
	}
	// A webhook without conditions in the template must have none.
	if _, ok := want["matchConditions"]; !ok {
		delete(hook, "matchConditions")
	}
	for key, value := range want {
		if key != "namespaceSelector" {
			hook[key] = value
		}
	}
	return hook, nil
}

// selectsTheSame reports whether two selectors have the same requirements, in any order.
func selectsTheSame(a, b *metav1.LabelSelector) bool {
	one, err := metav1.LabelSelectorAsSelector(a)
	other, failed := metav1.LabelSelectorAsSelector(b)
	return err == nil && failed == nil && one.String() == other.String()
}

// isExclusion reports whether an expression excludes namespaces. An expression about enrolment does not count.
func isExclusion(e metav1.LabelSelectorRequirement) bool {
	return e.Key != v1alpha1.EnrolledLabel &&
		(e.Operator == metav1.LabelSelectorOpNotIn || e.Operator == metav1.LabelSelectorOpDoesNotExist)
}

// exclude adds an exclusion to a selector. It extends an exclusion by the same label.
func exclude(selector *metav1.LabelSelector, e metav1.LabelSelectorRequirement) {
	for i := range selector.MatchExpressions {
		if have := &selector.MatchExpressions[i]; have.Key == e.Key && have.Operator == e.Operator {
			for _, value := range e.Values {
				if !slices.Contains(have.Values, value) {
					have.Values = append(have.Values, value)
				}
			}
			return
		}
	}
	selector.MatchExpressions = append(selector.MatchExpressions, *e.DeepCopy())
}

func selectorOf(hook map[string]any) (*metav1.LabelSelector, error) {
	selector := &metav1.LabelSelector{}
	content, _, err := unstructured.NestedMap(hook, "namespaceSelector")
	if err != nil {
		return nil, err
	}
	return selector, runtime.DefaultUnstructuredConverter.FromUnstructured(content, selector)
}

func setSelector(hook map[string]any, selector *metav1.LabelSelector) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(selector)
	if err != nil {
		return err
	}
	hook["namespaceSelector"] = content
	return nil
}

// ByURL reports whether any webhook of a configuration is called by a URL, as by an operator outside of the cluster.
func ByURL(live *unstructured.Unstructured) bool {
	return slices.ContainsFunc(webhooks(live), func(hook map[string]any) bool {
		_, found, _ := unstructured.NestedFieldNoCopy(hook, "clientConfig", "url")
		return found
	})
}

// Empty reports whether a configuration has no webhooks.
func Empty(live *unstructured.Unstructured) bool { return len(webhooks(live)) == 0 }

// Injectors returns the annotations of a configuration that tell another program which bundle to inject.
func Injectors(live *unstructured.Unstructured) map[string]string {
	found := map[string]string{}
	for key, value := range live.GetAnnotations() {
		if slices.Contains(injectors, key) {
			found[key] = value
		}
	}
	return found
}

// injectors are the annotations of cert-manager and of OpenShift.
var injectors = []string{
	"cert-manager.io/inject-ca-from", "cert-manager.io/inject-ca-from-secret", "cert-manager.io/inject-apiserver-ca",
	"service.beta.openshift.io/inject-cabundle",
}

// Bundles returns the bundles of the webhooks of a configuration.
func Bundles(live *unstructured.Unstructured) [][]byte {
	var bundles [][]byte
	for _, hook := range webhooks(live) {
		text, _, _ := unstructured.NestedString(hook, "clientConfig", "caBundle")
		bundle, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			bundle = nil
		}
		bundles = append(bundles, bundle)
	}
	return bundles
}

// bundleOf returns the encoded bundle of a webhook, nil if it has none.
func bundleOf(hook map[string]any) any {
	bundle, _, _ := unstructured.NestedFieldNoCopy(hook, "clientConfig", "caBundle")
	return bundle
}

func setBundle(hook map[string]any, bundle []byte) {
	config, ok := hook["clientConfig"].(map[string]any)
	if !ok {
		config = map[string]any{}
		hook["clientConfig"] = config
	}
	config["caBundle"] = base64.StdEncoding.EncodeToString(bundle)
}

// webhooks returns the webhooks of a configuration, which the caller may change.
func webhooks(u *unstructured.Unstructured) []map[string]any {
	list, _ := u.Object["webhooks"].([]any)
	var hooks []map[string]any
	for _, item := range list {
		if hook, ok := item.(map[string]any); ok {
			hooks = append(hooks, hook)
		}
	}
	return hooks
}

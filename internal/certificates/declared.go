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
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/traas-stack/altershield-operator/internal/declared"
)

// Declared returns the webhook configurations of declared kinds, without the Service. Manifests have them without webhooks, so
// that the manager needs no right to create configurations, and an uninstall deletes them.
func Declared(kinds []*declared.Kind) []runtime.Object {
	typeMeta := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: kind}
	}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{
		TypeMeta: typeMeta("MutatingWebhookConfiguration"), ObjectMeta: metav1.ObjectMeta{Name: "declared-mutating"},
	}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta: typeMeta("ValidatingWebhookConfiguration"), ObjectMeta: metav1.ObjectMeta{Name: "declared-validating"},
	}
	byName := func(a, b *declared.Kind) int { return cmp.Compare(a.Name, b.Name) }
	for _, k := range slices.SortedFunc(slices.Values(kinds), byName) {
		m, v := k.Webhooks()
		mutating.Webhooks, validating.Webhooks = append(mutating.Webhooks, m...), append(validating.Webhooks, v...)
	}
	return []runtime.Object{mutating, validating}
}

// ofDeclared returns the wanted configurations of declared kinds. Their names have the prefix of the other two.
func (c *configurations) ofDeclared(kinds []*declared.Kind) ([]Configuration, error) {
	name := func(other, does string) string {
		return strings.TrimSuffix(other, "-"+does+"-webhook-configuration") + "-declared-" + does
	}
	return NewConfigurations(Declared(kinds), name(c.o.Mutating, "mutating"), name(c.o.Validating, "validating"), c.o.target())
}

// Write writes the webhooks of all declared kinds, and keeps them from then on. Only the leader calls it: at its start, also
// without kinds, since its predecessor may have ended before a write; after its registry has an added or changed kind; and
// before its registry drops a kind. A nil error means that the API server stores the webhooks. API servers use them about a
// second later.
func (c *Certificates) Write(ctx context.Context, kinds []*declared.Kind) error {
	wanted, err := c.ofDeclared(kinds)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	c.declared, c.known = wanted, true
	if err := c.attempt(ctx); err != nil {
		return err
	}
	return c.written(ctx)
}

// written returns an error if a configuration of declared kinds is not as wanted.
func (c *configurations) written(ctx context.Context) error {
	all, err := c.read(ctx)
	if err != nil {
		return err
	}
	stored := map[string]bool{}
	for _, of := range all {
		if !of.declared || of.live == nil {
			continue
		}
		next, err := of.want.Restore(of.live, nil)
		if err != nil {
			return fmt.Errorf("webhook configuration %s: %w", of.live.GetName(), err)
		}
		noBundle := func(bundle []byte) bool { return len(bundle) == 0 }
		if !equality.Semantic.DeepEqual(of.live.Object, next.Object) || slices.ContainsFunc(Bundles(of.live), noBundle) {
			return fmt.Errorf("the webhook configuration %s lacks webhooks of declared kinds, or their authority", of.live.GetName())
		}
		stored[of.live.GetName()] = true
	}
	for _, want := range c.declared {
		if name := want.template.GetName(); !stored[name] && !Empty(want.template) {
			return fmt.Errorf("the webhook configuration %s is missing, or the manager may not read it: %s", name, remedy)
		}
	}
	return nil
}

// beside adds the authority and the address of other webhooks to a configuration of declared kinds.
func (c *configuration) beside(others []configuration) {
	base := ""
	for _, other := range others {
		if other.declared || other.live == nil {
			continue
		}
		for _, bundle := range Bundles(other.live) {
			if len(c.authority) == 0 && len(bundle) > 0 {
				c.authority = bundle
			}
		}
		base = cmp.Or(base, other.base())
	}
	if base != "" {
		c.want = c.want.at(base)
	}
}

// base returns the URL by which the webhooks of a configuration are called, without their paths; empty if they are called
// through a Service.
func (c *configuration) base() string {
	for _, hook := range webhooks(c.live) {
		url, found, _ := unstructured.NestedString(hook, "clientConfig", "url")
		for _, want := range webhooks(c.want.template) {
			path, _, _ := unstructured.NestedString(want, "clientConfig", "service", "path")
			if base, cut := strings.CutSuffix(url, path); found && cut && want["name"] == hook["name"] {
				return base
			}
		}
	}
	return ""
}

// at returns the configuration with webhooks that are called by a URL.
func (c Configuration) at(base string) Configuration {
	at := Configuration{template: c.template.DeepCopy()}
	for _, hook := range webhooks(at.template) {
		path, _, _ := unstructured.NestedString(hook, "clientConfig", "service", "path")
		hook["clientConfig"] = map[string]any{"url": base + path}
	}
	return at
}

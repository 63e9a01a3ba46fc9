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

package installation

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/certificates"
	"github.com/traas-stack/altershield-operator/internal/pki"
	"github.com/traas-stack/altershield-operator/internal/settings"
	"github.com/traas-stack/altershield-operator/webhooks"
)

const (
	pageMissing      = "operations.md#altershieldwebhookconfigurationmissing"
	pageUnreachable  = "operations.md#altershieldwebhookunreachable"
	pageExpiring     = "operations.md#altershieldcertificateexpiring"
	pageCertificates = "operations.md#certificates"
	pageBreakGlass   = "operations.md#break-the-glass"

	// expiring is how long before its end a certificate should have been renewed, and a
	// tenth of its life where that is less.
	expiring = 14 * 24 * time.Hour

	servicePort = 443
)

func webhooksChecks(f *Facts) []Check {
	mutating, validating := f.configurations()
	checks := []Check{
		configured("webhooks.mutating", "the mutating webhook configuration is there", mutating, f.Mutating,
			"releases are recorded only after they were stored, and no rollout is held from its beginning"),
		configured("webhooks.validating", "the validating webhook configuration is there", validating, f.Validating,
			"no release of a blocked workload is denied"),
	}
	present := f.Mutating.readable() || f.Validating.readable()
	if present {
		checks = append(checks, expected(f))
	}
	if f.Validating.readable() {
		checks = append(checks, blocksHold(f))
	}
	if present {
		checks = append(checks, bundles(f), serving(f))
	}
	return append(checks, endpoints(f), restored(f), answers(f))
}

func configured(id, name, object string, read Read[*unstructured.Unstructured], without string) Check {
	c := newCheck(id, name)
	if c, unread := read.unread(c); unread {
		return c
	}
	switch {
	case read.missing():
		return c.fail(object+" is not there: "+without, applyAgain, pageMissing)
	case certificates.Empty(read.Value):
		return c.fail(object+" has no webhooks: "+without, applyAgain, pageMissing)
	}
	return c.ok("")
}

// leftBehind looks for webhooks of an operator that is not there: they deny.
func leftBehind(f *Facts) Check {
	c := newCheck("webhooks.left", "no webhooks are left without the operator")
	for _, read := range []Read[*unstructured.Unstructured]{f.Validating, f.Mutating} {
		if c, unread := read.unread(c); unread {
			return c
		}
		if read.readable() {
			return c.fail(read.Value.GetName()+" is there, and nobody answers it: releases of workloads that are still blocked are refused",
				"install the operator again, or remove it: kubectl delete "+strings.ToLower(read.Value.GetKind())+" "+read.Value.GetName(), "operations.md#uninstall")
		}
	}
	return c.ok("")
}

// expected compares the webhooks with what the operator of this build makes them.
func expected(f *Facts) Check {
	c := newCheck("webhooks.expected", "the webhooks are as this version makes them")
	mutating, validating := f.configurations()
	wanted, err := certificates.NewConfigurations(webhooks.Configurations(f.Kinds), mutating, validating,
		certificates.Target{Namespace: f.Namespace, Service: f.service(), Port: servicePort})
	if err != nil {
		return c.fail(err.Error(), "report this as a bug", pageCheck)
	}
	var differ []string
	for _, w := range wanted {
		live := f.Mutating
		if w.Object().GetKind() == "ValidatingWebhookConfiguration" {
			live = f.Validating
		}
		if !live.readable() {
			continue
		}
		if certificates.ByURL(live.Value) {
			return c.warn("they call a URL: that of a manager under development, outside of the cluster",
				"install the operator in the cluster: "+applyAgain, pageCertificates)
		}
		restored, _, err := w.RestoreAround(live.Value)
		if err != nil {
			differ = append(differ, err.Error())
			continue
		}
		differ = append(differ, deviations(live.Value, restored)...)
	}
	if len(differ) == 0 {
		return c.ok("")
	}
	message := strings.Join(differ, "; ")
	if !f.sameBuild() {
		return c.warn(message+" (operator and plugin are of different versions, which may be why)",
			"take the plugin of the operator's version", "operations.md#upgrade")
	}
	return c.fail(message, fmt.Sprintf("the leader restores them within seconds: look why it does not, kubectl -n %s logs -l control-plane=controller-manager --tail=-1%s",
		f.Namespace, f.orOtherVersion()), pageCertificates)
}

// orOtherVersion is a remedy for where it is not known that operator and plugin are of
// one version.
func (f *Facts) orOtherVersion() string {
	if _, _, ok := f.compared(); ok {
		return ""
	}
	return "; or take the plugin of the operator's version"
}

// deviations are what differs between the webhooks as they are and as they are meant
// to be, one line for each webhook.
func deviations(live, wanted *unstructured.Unstructured) []string {
	have, want := hooks(live), hooks(wanted)
	var found []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		is, there := have[name]
		if !there {
			found = append(found, name+" is missing")
			continue
		}
		var changed []string
		for _, key := range slices.Sorted(maps.Keys(want[name])) {
			if !equality.Semantic.DeepEqual(is[key], want[name][key]) {
				changed = append(changed, differs(key, is[key], want[name][key]))
			}
		}
		for _, key := range slices.Sorted(maps.Keys(is)) {
			if _, kept := want[name][key]; !kept {
				changed = append(changed, key+" was added")
			}
		}
		if len(changed) > 0 {
			found = append(found, name+": "+strings.Join(changed, ", "))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, wanted := want[name]; !wanted {
			found = append(found, name+" does not belong there")
		}
	}
	return found
}

func differs(key string, is, want any) string {
	switch want.(type) {
	case string, int64, bool:
		return fmt.Sprintf("%s is %v, not %v", key, is, want)
	default:
		return key + " was changed"
	}
}

func hooks(u *unstructured.Unstructured) map[string]map[string]any {
	found := map[string]map[string]any{}
	list, _, _ := unstructured.NestedSlice(u.Object, "webhooks")
	for _, item := range list {
		if hook, ok := item.(map[string]any); ok {
			name, _ := hook["name"].(string)
			found[name] = hook
		}
	}
	return found
}

// blocksHold says whether a release of a blocked workload is refused, too, when the
// webhooks do not answer.
func blocksHold(f *Facts) Check {
	c := newCheck("webhooks.block", "blocks hold while the operator is down")
	blocks := 0
	all := hooks(f.Validating.Value)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		hook := all[name]
		path, _, _ := unstructured.NestedString(hook, "clientConfig", "service", "path")
		url, _, _ := unstructured.NestedString(hook, "clientConfig", "url")
		if !strings.Contains(path+url, "/validate-") {
			continue
		}
		blocks++
		if hook["failurePolicy"] != "Fail" {
			return c.fail(fmt.Sprintf("the failure policy of %s is %v: releases of blocked workloads pass while the operator is down", name, hook["failurePolicy"]),
				"if nobody breaks the glass on purpose, "+applyAgain, pageBreakGlass)
		}
	}
	if blocks == 0 {
		return c.fail("no webhook denies releases of blocked workloads", applyAgain, pageMissing)
	}
	return c.ok("")
}

// bundles says whether API servers can verify the webhooks.
func bundles(f *Facts) Check {
	c := newCheck("webhooks.authority", "the webhooks carry an authority that is valid")
	_, own := f.certificateSecret()
	remedy, page := f.certificateRemedy(own), pageCertificates
	var first []byte
	for _, read := range []Read[*unstructured.Unstructured]{f.Mutating, f.Validating} {
		if !read.readable() {
			continue
		}
		for _, bundle := range certificates.Bundles(read.Value) {
			authorities := pki.ParseCertificates(bundle)
			if len(authorities) == 0 {
				return c.fail(fmt.Sprintf("a webhook of %s has no certificate of an authority: API servers cannot call it", read.Value.GetName()),
					remedy, page)
			}
			if first == nil {
				first = bundle
			}
			if !bytes.Equal(bundle, first) {
				return c.warn("the webhooks carry different authorities", "wait some seconds; "+remedy, page)
			}
		}
	}
	if first == nil {
		return c.skip("there is no webhook that could carry one")
	}
	latest := slices.MaxFunc(pki.ParseCertificates(first), func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	switch now := f.now(); {
	case now.After(latest.NotAfter):
		return c.fail("it ended on "+day(latest.NotAfter), remedy, pageExpiring)
	case now.Before(latest.NotBefore):
		return c.fail("it is not valid before "+latest.NotBefore.UTC().Format(time.RFC3339)+": clocks differ", remedy, pageCertificates)
	case endsSoon(latest, now):
		return c.warn("it ends on "+day(latest.NotAfter)+", and should have been renewed", remedy, pageExpiring)
	}
	return c.ok("until %s", day(latest.NotAfter))
}

func day(t time.Time) string { return t.UTC().Format(time.DateOnly) }

// endsSoon says that a certificate should have been renewed.
func endsSoon(cert *x509.Certificate, now time.Time) bool {
	return cert.NotAfter.Sub(now) < min(expiring, cert.NotAfter.Sub(cert.NotBefore)/10)
}

// certificateRemedy says who is to mend a certificate.
func (f *Facts) certificateRemedy(own bool) string {
	if own {
		return fmt.Sprintf("the manager makes and renews it: kubectl -n %s logs -l control-plane=controller-manager --tail=-1 | grep certificates", f.Namespace)
	}
	return fmt.Sprintf("it comes from elsewhere: with cert-manager, kubectl -n %s describe certificate; with files of your own, renew them", f.Namespace)
}

// serving looks at the certificate that the webhooks are served with, where the user may.
func serving(f *Facts) Check {
	c := newCheck("webhooks.certificate", "the certificate of the webhooks is valid, and by that authority")
	if f.outside() {
		return c.skip(runsOutside)
	}
	name, own := f.certificateSecret()
	if name == "" {
		return c.skip("it comes from files that are no mounted Secret")
	}
	if c, unread := f.Certificate.unread(c); unread {
		return c
	}
	remedy := f.certificateRemedy(own)
	if f.Certificate.missing() {
		return c.fail("the Secret "+name+" is not there", remedy, pageCertificates)
	}
	chain := pki.ParseCertificates(f.Certificate.Value.Data[certificates.CertKey])
	if len(chain) == 0 {
		return c.fail("the Secret "+name+" has no certificate in "+certificates.CertKey, remedy, pageCertificates)
	}
	if !f.carried() {
		return c.skip("there is no webhook that carries an authority")
	}
	leaf, host := chain[0], certificates.ServiceHosts(f.Namespace, f.service())[0]
	switch now := f.now(); {
	case now.After(leaf.NotAfter):
		return c.fail("it ended on "+leaf.NotAfter.UTC().Format(time.RFC3339), remedy, pageExpiring)
	case leaf.VerifyHostname(host) != nil:
		return c.fail("it is not for "+host, remedy, pageCertificates)
	case !f.verified(chain):
		return c.fail("it is not signed by an authority that the webhooks carry: API servers refuse it", remedy, pageUnreachable)
	case endsSoon(leaf, now):
		return c.warn("it ends on "+leaf.NotAfter.UTC().Format(time.RFC3339)+", and should have been renewed", remedy, pageExpiring)
	}
	return c.ok("until %s", day(leaf.NotAfter))
}

// carried says that there is a webhook to carry an authority.
func (f *Facts) carried() bool {
	return slices.ContainsFunc([]Read[*unstructured.Unstructured]{f.Mutating, f.Validating}, func(read Read[*unstructured.Unstructured]) bool {
		return read.readable() && !certificates.Empty(read.Value)
	})
}

// verified says that every webhook carries an authority of a certificate.
func (f *Facts) verified(chain []*x509.Certificate) bool {
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	for _, read := range []Read[*unstructured.Unstructured]{f.Mutating, f.Validating} {
		if !read.readable() {
			continue
		}
		for _, bundle := range certificates.Bundles(read.Value) {
			roots := x509.NewCertPool()
			for _, cert := range pki.ParseCertificates(bundle) {
				roots.AddCert(cert)
			}
			if _, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: f.now()}); err != nil {
				return false
			}
		}
	}
	return true
}

// endpoints says whether the service of the webhooks leads to somebody.
func endpoints(f *Facts) Check {
	c := newCheck("webhooks.service", "the service of the webhooks has ready endpoints")
	if f.outside() {
		return c.skip(runsOutside)
	}
	if c, unread := f.Service.unread(c); unread {
		return c
	}
	if f.Service.missing() {
		return c.fail("there is no Service "+f.service()+" in "+f.Namespace, applyAgain, pageUnreachable)
	}
	if !slices.ContainsFunc(f.Service.Value.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == servicePort }) {
		return c.fail(fmt.Sprintf("the Service %s has no port %d", f.service(), servicePort), applyAgain, pageUnreachable)
	}
	if c, unread := f.Endpoints.unread(c); unread {
		return c
	}
	answering := 0
	for _, slice := range f.Endpoints.Value {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				answering++
			}
		}
	}
	if answering == 0 {
		return c.fail("none is ready: releases of blocked workloads are refused, all others pass unseen",
			"mend the replicas, which are told above; if they are ready, "+applyAgain, pageDown)
	}
	return c.ok("%d", answering)
}

// restored is what the operator itself says of its webhook configurations.
func restored(f *Facts) Check {
	c := newCheck("webhooks.reported", "the operator misses no webhook configuration")
	if c, unread := f.Settings.unlisted(c); unread {
		return c
	}
	for i := range f.Settings.Value {
		o := &f.Settings.Value[i]
		if o.Namespace != f.Namespace || o.Name != settings.NameBlocking {
			continue
		}
		if said := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionWebhooksConfigured); said != nil && said.Status == metav1.ConditionFalse {
			return c.fail(said.Message, applyAgain, pageMissing)
		}
	}
	return c.ok("")
}

// answers says whether the webhooks answer the API server, end to end.
func answers(f *Facts) Check {
	c := newCheck("webhooks.answer", "a Deployment created in a dry run passes the webhooks")
	if c, unread := f.Answer.unread(c); unread {
		return c
	}
	tried := f.Answer.Value
	switch {
	case tried.Namespace == "":
		return c.skip("no enrolled namespace is known in which to try it")
	case tried.Stamped:
		return c.ok("in %s", tried.Namespace)
	case f.ours(tried.Denied, "denied the request"):
		return c.ok("in %s, where a policy denies it: %s", tried.Namespace, tried.Denied)
	case f.ours(tried.Denied, "failed calling"):
		return c.fail(tried.Denied, f.unreachable(), pageUnreachable)
	case tried.Denied != "":
		return c.skip("something else denies it in %s: %s", tried.Namespace, tried.Denied)
	}
	return c.fail("in "+tried.Namespace+" it passed without being labelled with its version: the API server does not call the mutating webhook, or got no answer",
		f.unreachable(), pageUnreachable)
}

// ours says that a webhook of the operator is what a denial is about.
func (f *Facts) ours(denial, what string) bool {
	if !strings.Contains(denial, what) {
		return false
	}
	for _, read := range []Read[*unstructured.Unstructured]{f.Mutating, f.Validating} {
		if !read.readable() {
			continue
		}
		for name := range hooks(read.Value) {
			if strings.Contains(denial, fmt.Sprintf("webhook %q", name)) {
				return true
			}
		}
	}
	return false
}

func (f *Facts) unreachable() string {
	return fmt.Sprintf("mend what failed above; else see the API server's log, and whether it reaches port 9443 of the pods in %s (firewall, network policy)", f.Namespace)
}

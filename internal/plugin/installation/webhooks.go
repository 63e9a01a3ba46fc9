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
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/traas-stack/altershield-operator/internal/pki"
)

const (
	pageMissing      = "tasks/respond-to-an-alert.md#altershieldwebhookconfigurationmissing"
	pageUnreachable  = "tasks/respond-to-an-alert.md#altershieldwebhookunreachable"
	pageExpiring     = "tasks/respond-to-an-alert.md#altershieldcertificateexpiring"
	pageCertificates = "tasks/run-in-production.md#certificates"
	pageBreakGlass   = "tasks/respond-to-an-alert.md#break-the-glass"

	// expiring is the time before its end at which a certificate should have been renewed, or a tenth of its life if that is less.
	expiring = 14 * 24 * time.Hour
)

// configured decides whether a webhook configuration has webhooks. It names what is missing without them.
func configured(read Read[webhooks], name, without string) func(Check) Check {
	return func(c Check) Check {
		switch {
		case read.missing():
			return c.fail(name+" does not exist: "+without, applyAgain, pageMissing)
		case len(read.Value) == 0:
			return c.fail(name+" has no webhooks: "+without, applyAgain, pageMissing)
		}
		return c.ok("")
	}
}

// failsClosed checks the failure policy of the webhooks that deny releases of blocked workloads. Their names begin with v.
func (f *Facts) failsClosed(c Check) Check {
	blocks := slices.DeleteFunc(slices.Clone(f.Validating.Value), func(h admissionv1.ValidatingWebhook) bool {
		return !strings.HasPrefix(h.Name, "v")
	})
	if len(blocks) == 0 {
		return c.fail("no webhook denies releases of blocked workloads", applyAgain, pageMissing)
	}
	for _, h := range blocks {
		if h.FailurePolicy != nil && *h.FailurePolicy != admissionv1.Fail {
			return c.fail(fmt.Sprintf("the failure policy of %s is %s: releases of blocked workloads pass while the operator is down",
				h.Name, *h.FailurePolicy), "unless you break the glass on purpose, "+applyAgain, pageBreakGlass)
		}
	}
	return c.ok("")
}

// authority checks that every webhook carries a CA bundle whose latest certificate is valid.
func (f *Facts) authority(c Check) Check {
	var ends *x509.Certificate
	for _, h := range f.webhooks() {
		bundle := pki.ParseCertificates(h.ClientConfig.CABundle)
		if len(bundle) == 0 {
			return c.fail("the webhook "+h.Name+" carries no CA bundle: the API server cannot call it", f.renewal(), pageCertificates)
		}
		latest := slices.MaxFunc(bundle, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		if ends == nil || latest.NotAfter.Before(ends.NotAfter) {
			ends = latest
		}
	}
	return f.valid(c, ends)
}

// certificate checks the certificate that the webhooks are served with, if the user may read its Secret.
func (f *Facts) certificate(c Check) Check {
	name, _ := f.certificateSecret()
	switch {
	case name == "":
		return c.skip("the certificate is in files of no mounted Secret")
	case f.Certificate.missing():
		return c.fail("the Secret "+name+" does not exist", f.renewal(), pageCertificates)
	}
	chain := pki.ParseCertificates(f.Certificate.Value.Data[corev1.TLSCertKey])
	if len(chain) == 0 {
		return c.fail("the Secret "+name+" has no certificate in "+corev1.TLSCertKey, f.renewal(), pageCertificates)
	}
	return f.valid(c, chain[0])
}

// valid returns the result for a certificate at this time.
func (f *Facts) valid(c Check, cert *x509.Certificate) Check {
	end, left := cert.NotAfter.UTC().Format(time.RFC3339), cert.NotAfter.Sub(f.Now)
	switch {
	case left < 0:
		return c.fail("it expired on "+end, f.renewal(), pageExpiring)
	case left < min(expiring, cert.NotAfter.Sub(cert.NotBefore)/10):
		return c.warn("it expires on "+end+", and should have been renewed", f.renewal(), pageExpiring)
	}
	return c.ok("until %s", end[:len(time.DateOnly)])
}

// renewal returns how to get another certificate.
func (f *Facts) renewal() string {
	if _, own := f.certificateSecret(); own {
		return "the manager writes and renews it; see why not: kubectl -n " + f.Namespace +
			" logs -l control-plane=controller-manager --tail=-1 | grep certificates"
	}
	return fmt.Sprintf("with cert-manager, kubectl -n %s describe certificate; with files of your own, renew them", f.Namespace)
}

// answers judges the dry run, which shows whether the webhooks answer the API server.
func (f *Facts) answers(c Check) Check {
	remedy := "repair the failures above; else see whether the API server reaches port 9443 of the pods in " + f.Namespace +
		" (firewall, network policy)"
	switch tried := f.Answer.Value; {
	case tried.Namespace == "":
		return c.skip("no enrolled namespace is known in which to try it")
	case tried.Stamped:
		return c.ok("in %s", tried.Namespace)
	case f.ours(tried.Denied, "denied the request"):
		return c.ok("in %s, where a policy denies it: %s", tried.Namespace, tried.Denied)
	case f.ours(tried.Denied, "failed calling"):
		return c.fail(tried.Denied, remedy, pageUnreachable)
	case tried.Denied != "":
		return c.skip("a webhook or policy denies it in %s: %s", tried.Namespace, tried.Denied)
	default:
		return c.fail("in "+tried.Namespace+" it passed without the label of its version: "+
			"the API server did not call the mutating webhook, or got no answer", remedy, pageUnreachable)
	}
}

// ours reports whether a webhook of the operator did this, according to the error of admission.
func (f *Facts) ours(denial, did string) bool {
	return strings.Contains(denial, did) && slices.ContainsFunc(f.webhooks(), func(h admissionv1.ValidatingWebhook) bool {
		return strings.Contains(denial, fmt.Sprintf("webhook %q", h.Name))
	})
}

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
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/traas-stack/altershield-operator/internal/pki"
)

// The content of the Secret.
const (
	// CertKey and KeyKey are the serving certificate and its key, as in every
	// Secret of type kubernetes.io/tls.
	CertKey = "tls.crt"
	KeyKey  = "tls.key"
	// BundleKey has every authority that may have signed a certificate that is
	// served somewhere, the newest first.
	BundleKey = "ca.crt"
	// CAKey is the key of the newest authority.
	CAKey = "ca.key"
	// PreviousCAKey is the key of the authority before that, for as long as
	// the newest one may not sign.
	PreviousCAKey = "ca-previous.key"
)

const (
	// maxSettle is how long both configurations carry a new authority before
	// it signs what is served. API servers usually know within a second; one
	// whose watch broke, within its time to connect again.
	maxSettle = 10 * time.Minute
	minSettle = time.Second
	maxLook   = time.Minute
	// maxAuthorities bounds the bundle. There are two when all is well; more
	// only where somebody removes the Secret over and over.
	maxAuthorities = 20
)

// Policy says what certificates there are.
//
// Replicas share nothing but the Secret and the webhook configurations, and each
// of them may be stale, slow, or gone between any two of its writes. What keeps
// every certificate verifiable anyway:
//
//   - An authority stays in the bundle until it has expired, and nothing that it
//     signed lives longer. Whatever old certificate a replica still serves is
//     covered, then.
//   - A new authority is put into the bundle first. It signs what is served once
//     both configurations have carried it for long enough that every API server
//     knows.
//   - A configuration is updated only if it is still as it was before the Secret
//     was read. A replica that was asleep in between cannot put an old bundle in
//     the place of a newer one.
type Policy struct {
	// Hosts are the names the webhooks are called by.
	Hosts []string
	// Validity of a serving certificate. Most other times follow from it.
	Validity time.Duration
	// Authority is how long an authority is valid, more than three times as
	// long; 0 is ten times.
	Authority time.Duration
}

// LookEvery is how often a replica looks. Everything that is due is so for much
// longer.
func (p Policy) LookEvery() time.Duration { return min(maxLook, p.Validity/20) }

// Settle is how long configurations carry a new authority before it is relied
// on.
func (p Policy) Settle() time.Duration { return max(minSettle, min(maxSettle, p.Validity/20)) }

// CAValidity is how long an authority is valid.
func (p Policy) CAValidity() time.Duration {
	if p.Authority > 0 {
		return p.Authority
	}
	return 10 * p.Validity
}

// renewCABefore its end an authority gets a successor: early enough that it need
// not cut short what it signs until the successor takes over.
func (p Policy) renewCABefore() time.Duration { return 3 * p.Validity }

// renewBefore its end a certificate is renewed.
func (p Policy) renewBefore() time.Duration { return p.Validity / 3 }

// urgent is when a certificate is renewed by an authority that API servers may
// not know, because none they know can sign any more.
func (p Policy) urgent() time.Duration { return p.Validity / 10 }

// Trust is what a replica knows of what API servers know: the authorities that
// every webhook carries, by their bytes, and since when it has seen that, look by look.
type Trust map[string]time.Time

// Update returns the trust after another read of the bundles of all webhooks.
func (t Trust) Update(bundles [][]byte, now time.Time) Trust {
	next := Trust{}
	for i, bundle := range bundles {
		seen := Trust{}
		for _, cert := range pki.ParseCertificates(bundle) {
			id := string(cert.Raw)
			since, known := t[id]
			if !known {
				since = now
			}
			if _, everywhere := next[id]; i == 0 || everywhere {
				seen[id] = since
			}
		}
		next = seen
	}
	return next
}

// Covers says whether every webhook carries the authority of a certificate.
func (t Trust) Covers(s *Serving) bool {
	return s != nil && t.knows(s.Root)
}

// knows reports whether every webhook carries an authority.
func (t Trust) knows(root *x509.Certificate) bool {
	_, ok := t[string(root.Raw)]
	return ok
}

// settled says whether API servers know an authority.
func (t Trust) settled(root *x509.Certificate, now time.Time, settle time.Duration) bool {
	since, ok := t[string(root.Raw)]
	return ok && now.Sub(since) >= settle
}

// Serving is a certificate to serve.
type Serving struct {
	Certificate tls.Certificate
	// Root is the authority by which it is verified.
	Root            *x509.Certificate
	certPEM, keyPEM []byte
}

// NotAfter is when the certificate expires.
func (s *Serving) NotAfter() time.Time { return s.Certificate.Leaf.NotAfter }

// lasts says whether there is a certificate that is valid at a time.
func (s *Serving) lasts(at time.Time) bool { return s != nil && at.Before(s.NotAfter()) }

// Same says whether two certificates are one.
func (s *Serving) Same(other *Serving) bool {
	return s != nil && other != nil && s.Certificate.Leaf.Equal(other.Certificate.Leaf)
}

// readServing reads a certificate that is good to serve under all names.
func (p Policy) readServing(certPEM, keyPEM []byte, bundle []*x509.Certificate, now time.Time) (*Serving, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	for _, host := range p.Hosts {
		if err := pair.Leaf.VerifyHostname(host); err != nil {
			return nil, err
		}
	}
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	for _, cert := range bundle {
		roots.AddCert(cert)
	}
	for _, cert := range pki.ParseCertificates(certPEM) {
		intermediates.AddCert(cert)
	}
	chains, err := pair.Leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return nil, err
	}
	return &Serving{Certificate: pair, Root: chains[0][len(chains[0])-1], certPEM: certPEM, keyPEM: keyPEM}, nil
}

// State is what a replica decides on.
type State struct {
	// Data of the Secret; empty when there is none.
	Data map[string][]byte
	// Serving is what the replica serves, nil before it does.
	Serving *Serving
	// Known is the bundle as the replica last knew it.
	Known []byte
	Trust Trust
	Now   time.Time
}

// Decision is what the Secret has to contain, and what follows for the replica.
type Decision struct {
	// Data of the Secret.
	Data map[string][]byte
	// Changes says in what it differs from what is there; empty when it does
	// not.
	Changes []string
	// Stored is the serving certificate in the Secret.
	Stored *Serving
}

// Bundle has the authorities that the webhooks have to carry.
func (d *Decision) Bundle() []byte { return d.Data[BundleKey] }

// Decide says what the Secret has to contain.
func (p Policy) Decide(o State) (*Decision, error) {
	d := &Decision{Data: maps.Clone(o.Data)}
	if d.Data == nil {
		d.Data = map[string][]byte{}
	}
	changed := func(format string, args ...any) { d.Changes = append(d.Changes, fmt.Sprintf(format, args...)) }

	// A change or removal of the Secret removes no authority that something is
	// still served by, here or on another replica.
	bundle := authorities(slices.Concat(o.Data[BundleKey], []byte("\n"), o.Known), o.Now)
	newest, previous := find(bundle, o.Data[CAKey]), find(bundle, o.Data[PreviousCAKey])
	stored, problem := p.readServing(o.Data[CertKey], o.Data[KeyKey], bundle, o.Now)
	if stored == nil && o.Serving.lasts(o.Now) && slices.ContainsFunc(bundle, o.Serving.Root.Equal) {
		stored = o.Serving
	}

	if newest == nil || newest.Cert.NotAfter.Sub(o.Now) < p.renewCABefore() {
		made, err := pki.NewCA("altershield-webhook-ca-"+o.Now.UTC().Format("20060102T150405"), o.Now, p.CAValidity())
		if err != nil {
			return nil, err
		}
		if newest != nil && (previous == nil || o.Trust.knows(newest.Cert)) {
			previous = newest
		}
		newest = made
		changed("a new authority, %s", made.Cert.Subject.CommonName)
	}
	bundle = slices.DeleteFunc(bundle, newest.Cert.Equal)
	bundle = slices.Insert(bundle, 0, newest.Cert)

	if signer := p.signer(o, stored, newest, previous); signer != nil {
		made, err := signer.IssueServer(p.Hosts[0], p.Hosts, o.Now, p.Validity)
		if err != nil {
			return nil, err
		}
		if len(o.Data) > 0 && stored == nil {
			changed("the certificate was unusable: %v", problem)
		}
		if stored, err = p.readServing(made.CertPEM, made.KeyPEM, bundle, o.Now); err != nil {
			return nil, fmt.Errorf("the certificate just made: %w", err)
		}
		changed("a new certificate by %s", signer.Cert.Subject.CommonName)
	}
	if previous != nil && (stored.Root.Equal(newest.Cert) || previous.Cert.Equal(newest.Cert)) {
		previous = nil
	}

	d.Stored = stored
	d.Data[CertKey], d.Data[KeyKey] = stored.certPEM, stored.keyPEM
	d.Data[BundleKey], d.Data[CAKey] = encode(bounded(bundle, stored, previous)), newest.KeyPEM
	delete(d.Data, PreviousCAKey)
	if previous != nil {
		d.Data[PreviousCAKey] = previous.KeyPEM
	}
	if len(d.Changes) == 0 && !maps.EqualFunc(d.Data, o.Data, bytes.Equal) {
		changed("cleared up")
	}
	return d, nil
}

// bounded leaves out the oldest authorities of which there are too many, but never
// the newest, that of the stored certificate, or the previous one.
func bounded(bundle []*x509.Certificate, stored *Serving, previous *pki.KeyPair) []*x509.Certificate {
	for i := len(bundle) - 1; i > 0 && len(bundle) > maxAuthorities; i-- {
		if !bundle[i].Equal(stored.Root) && (previous == nil || !bundle[i].Equal(previous.Cert)) {
			bundle = slices.Delete(bundle, i, i+1)
		}
	}
	return bundle
}

// signer is the authority that has to sign a new certificate in the place of the
// one that is stored; nil while that is good.
func (p Policy) signer(o State, stored *Serving, newest, previous *pki.KeyPair) *pki.KeyPair {
	settled := o.Trust.settled(newest.Cert, o.Now, p.Settle())
	signer := newest
	if !settled && previous != nil {
		signer = previous
	}
	if stored == nil {
		return signer
	}
	left := stored.NotAfter().Sub(o.Now)
	switch {
	case settled && !stored.Root.Equal(newest.Cert):
		return newest // The succession; the previous key is not needed any more.
	case left >= p.renewBefore():
		return nil
	case signer.Cert.NotAfter.Sub(stored.NotAfter()) < p.LookEvery():
		return nil // Another one would end just as soon.
	case settled, signer.Cert.Equal(stored.Root), left < p.urgent():
		return signer
	default:
		return nil
	}
}

// Choose says what a replica serves: what is stored, unless API servers know
// what it serves now and may not know what is stored.
func (p Policy) Choose(stored, current *Serving, trust Trust, now time.Time) *Serving {
	switch {
	case !current.lasts(now.Add(2 * p.LookEvery())):
		return stored
	case stored.Root.Equal(current.Root), trust.settled(stored.Root, now, p.Settle()), !trust.Covers(current):
		return stored
	default:
		return current
	}
}

// authorities are those of a bundle that can still verify anything.
func authorities(bundle []byte, now time.Time) []*x509.Certificate {
	var valid []*x509.Certificate
	for _, cert := range pki.ParseCertificates(bundle) {
		if cert.IsCA && now.Before(cert.NotAfter) && !slices.ContainsFunc(valid, cert.Equal) {
			valid = append(valid, cert)
		}
	}
	return valid
}

// find is the authority that a key belongs to.
func find(bundle []*x509.Certificate, keyPEM []byte) *pki.KeyPair {
	for _, cert := range bundle {
		if pair, err := pki.Pair(cert, keyPEM); err == nil {
			return pair
		}
	}
	return nil
}

func encode(bundle []*x509.Certificate) []byte {
	var out []byte
	for _, cert := range bundle {
		out = append(out, pki.EncodeCertificate(cert)...)
	}
	return out
}

// ServiceHosts are the names by which API servers, and others in the cluster,
// call a service.
func ServiceHosts(namespace, service string) []string {
	name := service + "." + namespace
	return []string{name + ".svc", name + ".svc.cluster.local", name}
}

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

// Keys of the Secret.
const (
	// CertKey and KeyKey hold the serving certificate and its key, as in every Secret of type kubernetes.io/tls.
	CertKey = "tls.crt"
	KeyKey  = "tls.key"
	// BundleKey holds every authority that may have signed a served certificate, the newest first.
	BundleKey = "ca.crt"
	// CAKey holds the key of the newest authority.
	CAKey = "ca.key"
	// PreviousCAKey holds the key of the previous authority while the newest authority may not sign.
	PreviousCAKey = "ca-previous.key"
)

const (
	// maxSettle is the longest time for which both configurations carry a new authority before it signs. API servers
	// usually know the authority within a second. An API server whose watch broke connects again within this time.
	maxSettle = 10 * time.Minute
	minSettle = time.Second
	maxLook   = time.Minute
	// maxAuthorities bounds the bundle. It usually has at most two authorities, and more only if the Secret is removed
	// repeatedly.
	maxAuthorities = 20
)

// Policy decides about certificates and authorities.
//
// Replicas share only the Secret and the webhook configurations. Each replica may be stale or slow, or may end between any
// two of its writes. Three rules keep every certificate verifiable nevertheless:
//
//   - An authority stays in the bundle until it has expired, and no certificate that it signed is valid for longer. So the
//     bundle covers every old certificate that a replica still serves.
//   - A new authority is first added to the bundle. It signs only after both configurations have carried it for long enough,
//     so that every API server knows it.
//   - A configuration is updated only if it has not changed since before the Secret was read. So a replica that slept in
//     between cannot replace a newer bundle by an older one.
type Policy struct {
	// Hosts are the names by which API servers call the webhooks.
	Hosts []string
	// Validity of a serving certificate. Most other times depend on it.
	Validity time.Duration
	// Authority is the validity of an authority, more than three times Validity; 0 is ten times Validity.
	Authority time.Duration
}

// LookEvery returns the longest time between rounds. All deadlines are much longer.
func (p Policy) LookEvery() time.Duration { return min(maxLook, p.Validity/20) }

// Settle returns the time for which configurations carry a new authority before it signs.
func (p Policy) Settle() time.Duration { return max(minSettle, min(maxSettle, p.Validity/20)) }

// CAValidity returns the validity of an authority.
func (p Policy) CAValidity() time.Duration {
	if p.Authority > 0 {
		return p.Authority
	}
	return 10 * p.Validity
}

// renewCABefore returns the time before its expiry at which an authority gets a successor: early enough that it signs for the
// full validity until the successor signs.
func (p Policy) renewCABefore() time.Duration { return 3 * p.Validity }

// renewBefore returns the time before its expiry at which a certificate is renewed.
func (p Policy) renewBefore() time.Duration { return p.Validity / 3 }

// urgent returns the time before its expiry at which a certificate is renewed even by an authority that API servers may not
// know, because they know no authority that can sign.
func (p Policy) urgent() time.Duration { return p.Validity / 10 }

// Trust maps each authority that every webhook carries, by its bytes, to the time since when a replica has seen it in every
// round.
type Trust map[string]time.Time

// Update returns the trust after a round that read the bundles of all webhooks.
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

// Covers reports whether every webhook carries the authority of a certificate.
func (t Trust) Covers(s *Serving) bool {
	return s != nil && t.knows(s.Root)
}

// knows reports whether every webhook carries an authority.
func (t Trust) knows(root *x509.Certificate) bool {
	_, ok := t[string(root.Raw)]
	return ok
}

// settled reports whether all API servers know an authority.
func (t Trust) settled(root *x509.Certificate, now time.Time, settle time.Duration) bool {
	since, ok := t[string(root.Raw)]
	return ok && now.Sub(since) >= settle
}

// Serving is a certificate to serve.
type Serving struct {
	Certificate tls.Certificate
	// Root is the authority that verifies it.
	Root            *x509.Certificate
	certPEM, keyPEM []byte
}

// NotAfter returns the expiry of the certificate.
func (s *Serving) NotAfter() time.Time { return s.Certificate.Leaf.NotAfter }

// lasts reports whether the certificate exists and is valid at a time.
func (s *Serving) lasts(at time.Time) bool { return s != nil && at.Before(s.NotAfter()) }

// Same reports whether two certificates are equal.
func (s *Serving) Same(other *Serving) bool {
	return s != nil && other != nil && s.Certificate.Leaf.Equal(other.Certificate.Leaf)
}

// readServing reads a certificate, and verifies it for all hosts.
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

// State is the input of a decision.
type State struct {
	// Data of the Secret; empty if the Secret does not exist.
	Data map[string][]byte
	// Serving is the certificate that the replica serves; nil before the first one.
	Serving *Serving
	// Known is the last bundle that the replica decided.
	Known []byte
	Trust Trust
	Now   time.Time
}

// Decision is the wanted content of the Secret.
type Decision struct {
	// Data of the Secret.
	Data map[string][]byte
	// Changes describes the differences from the stored Secret; empty if there are none.
	Changes []string
	// Stored is the serving certificate in the Secret.
	Stored *Serving
}

// Bundle returns the authorities that the webhooks have to carry.
func (d *Decision) Bundle() []byte { return d.Data[BundleKey] }

// Decide decides the content of the Secret.
func (p Policy) Decide(o State) (*Decision, error) {
	d := &Decision{Data: maps.Clone(o.Data)}
	if d.Data == nil {
		d.Data = map[string][]byte{}
	}
	changed := func(format string, args ...any) { d.Changes = append(d.Changes, fmt.Sprintf(format, args...)) }

	// A change or a removal of the Secret removes no authority of a certificate that a replica may still serve.
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
			return nil, fmt.Errorf("read the new certificate: %w", err)
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

// bounded removes the oldest authorities beyond the limit. The newest authority, the previous authority and the authority of
// the stored certificate stay.
func bounded(bundle []*x509.Certificate, stored *Serving, previous *pki.KeyPair) []*x509.Certificate {
	for i := len(bundle) - 1; i > 0 && len(bundle) > maxAuthorities; i-- {
		if !bundle[i].Equal(stored.Root) && (previous == nil || !bundle[i].Equal(previous.Cert)) {
			bundle = slices.Delete(bundle, i, i+1)
		}
	}
	return bundle
}

// signer returns the authority that has to sign a new certificate; nil while the stored certificate is good.
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
		return newest // The succession: the previous key is no longer needed.
	case left >= p.renewBefore():
		return nil
	case signer.Cert.NotAfter.Sub(stored.NotAfter()) < p.LookEvery():
		return nil // A new certificate would expire as early.
	case settled, signer.Cert.Equal(stored.Root), left < p.urgent():
		return signer
	default:
		return nil
	}
}

// Choose returns the certificate to serve. It is the stored one, unless API servers know the authority of the current one and
// may not know the authority of the stored one.
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

// authorities returns the authorities of a bundle that have not expired.
func authorities(bundle []byte, now time.Time) []*x509.Certificate {
	var valid []*x509.Certificate
	for _, cert := range pki.ParseCertificates(bundle) {
		if cert.IsCA && now.Before(cert.NotAfter) && !slices.ContainsFunc(valid, cert.Equal) {
			valid = append(valid, cert)
		}
	}
	return valid
}

// find returns the authority of a key, nil if the bundle does not have it.
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

// ServiceHosts returns the names by which clients in the cluster call a Service.
func ServiceHosts(namespace, service string) []string {
	name := service + "." + namespace
	return []string{name + ".svc", name + ".svc.cluster.local", name}
}

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
	"crypto/x509"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/internal/pki"
)

var (
	policy = Policy{Hosts: ServiceHosts("ours", "hooks"), Validity: 90 * 24 * time.Hour}
	start  = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

// decide decides, and checks what is true of every decision.
func decide(t *testing.T, p Policy, o State) *Decision {
	t.Helper()
	d, err := p.Decide(o)
	if err != nil {
		t.Fatal(err)
	}
	if d.Stored == nil || !bytes.Equal(d.Data[CertKey], d.Stored.certPEM) {
		t.Fatal("the stored certificate is not in the data of the Secret")
	}
	bundle := authorities(d.Bundle(), o.Now)
	if _, err := p.readServing(d.Data[CertKey], d.Data[KeyKey], bundle, o.Now); err != nil {
		t.Fatalf("the certificate is not good: %v", err)
	}
	if newest := find(bundle, d.Data[CAKey]); newest == nil || !newest.Cert.Equal(bundle[0]) {
		t.Fatal("the key is not the first authority's")
	}
	for _, ca := range authorities(append(bytes.Clone(o.Data[BundleKey]), o.Known...), o.Now) {
		if !strings.Contains(string(d.Bundle()), string(pki.EncodeCertificate(ca))) {
			t.Fatalf("authority %s left the bundle before it expired", ca.Subject.CommonName)
		}
	}
	// A second decision changes nothing.
	again, err := p.Decide(State{Data: d.Data, Serving: o.Serving, Known: o.Known, Trust: o.Trust, Now: o.Now})
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Changes) > 0 || !maps.EqualFunc(again.Data, d.Data, bytes.Equal) {
		t.Fatalf("decided %q, and then %q", d.Changes, again.Changes)
	}
	return d
}

// trusting returns a trust that has the authorities of a bundle since a time.
func trusting(bundle []byte, since time.Time) Trust {
	return Trust{}.Update([][]byte{bundle}, since)
}

func signedBy(t *testing.T, d *Decision, ca *x509.Certificate) {
	t.Helper()
	if !d.Stored.Root.Equal(ca) {
		t.Errorf("signed by %s, want %s", d.Stored.Root.Subject.CommonName, ca.Subject.CommonName)
	}
}

func TestDecide(t *testing.T) {
	first := decide(t, policy, State{Now: start})
	a := authorities(first.Bundle(), start)[0]
	if got := a.NotAfter.Sub(start); got != 900*24*time.Hour {
		t.Errorf("the authority is valid for %s", got)
	}
	if got := first.Stored.NotAfter().Sub(start); got != policy.Validity {
		t.Errorf("the certificate is valid for %s", got)
	}
	for _, host := range []string{"hooks.ours.svc", "hooks.ours.svc.cluster.local", "hooks.ours"} {
		if err := first.Stored.Certificate.Leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	trusted := trusting(first.Bundle(), start)

	// The authority is in the last third of its validity: its successor waits.
	caDue := a.NotAfter.Add(-policy.renewCABefore()).Add(time.Second)
	fresh, err := find([]*x509.Certificate{a}, first.Data[CAKey]).IssueServer("x", policy.Hosts, caDue.Add(-time.Hour), policy.Validity)
	if err != nil {
		t.Fatal(err)
	}
	old := with(first.Data, CertKey, fresh.CertPEM, KeyKey, fresh.KeyPEM)
	pending := decide(t, policy, State{Data: old, Trust: trusted, Now: caDue})
	b := authorities(pending.Bundle(), caDue)[0]
	if pending.Data[PreviousCAKey] == nil || len(authorities(pending.Bundle(), caDue)) != 2 {
		t.Fatalf("no overlap: %q", pending.Changes)
	}
	both := trusting(pending.Bundle(), caDue)
	settled := caDue.Add(policy.Settle())
	succeeded := decide(t, policy, State{Data: pending.Data, Trust: both, Now: settled})

	foreignCA, err := pki.NewCA("cert-manager", start, policy.CAValidity())
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := foreignCA.IssueServer("x", policy.Hosts, start, policy.Validity)
	if err != nil {
		t.Fatal(err)
	}
	otherHosts, err := find([]*x509.Certificate{a}, first.Data[CAKey]).IssueServer("x", []string{"hooks.theirs.svc"}, start, policy.Validity)
	if err != nil {
		t.Fatal(err)
	}

	for name, test := range map[string]struct {
		o State
		// wantSame means the certificate of the Secret, else wantBy has signed it.
		wantSame bool
		wantBy   *x509.Certificate
		// wantNew means that a new authority heads the bundle, which has wantCAs.
		wantNew     bool
		wantCAs     int
		wantChanges bool
		wantPrev    bool
	}{
		"good":                   {o: State{Data: first.Data, Trust: trusted, Now: start.Add(time.Hour)}, wantSame: true, wantCAs: 1},
		"good, not injected yet": {o: State{Data: first.Data, Now: start.Add(time.Hour)}, wantSame: true, wantCAs: 1},
		"due": {
			o: State{Data: first.Data, Trust: trusted, Now: start.Add(61 * 24 * time.Hour)}, wantBy: a, wantCAs: 1, wantChanges: true,
		},
		"due, injection fails": {
			o: State{Data: first.Data, Now: start.Add(61 * 24 * time.Hour)}, wantBy: a, wantCAs: 1, wantChanges: true,
		},
		"expired long ago": {
			o: State{Data: first.Data, Now: start.Add(1000 * 24 * time.Hour)}, wantNew: true, wantCAs: 1, wantChanges: true,
		},
		"successor due": {
			o: State{Data: old, Trust: trusted, Now: caDue}, wantSame: true, wantNew: true, wantCAs: 2, wantChanges: true, wantPrev: true,
		},
		"successor waits": {
			o: State{Data: pending.Data, Trust: both, Now: settled.Add(-time.Second)}, wantSame: true, wantCAs: 2, wantPrev: true,
		},
		"successor unknown": {
			o: State{Data: pending.Data, Trust: trusted, Now: settled.Add(time.Hour)}, wantSame: true, wantCAs: 2, wantPrev: true,
		},
		"successor unknown, certificate due": {
			o:      State{Data: pending.Data, Trust: trusted, Now: caDue.Add(61 * 24 * time.Hour)},
			wantBy: a, wantCAs: 2, wantChanges: true, wantPrev: true,
		},
		"succession":       {o: State{Data: pending.Data, Trust: both, Now: settled}, wantBy: b, wantCAs: 2, wantChanges: true},
		"after succession": {o: State{Data: succeeded.Data, Trust: both, Now: settled.Add(time.Hour)}, wantSame: true, wantCAs: 2},
		"after succession, predecessor expired": {
			o: State{Data: succeeded.Data, Trust: both, Now: a.NotAfter}, wantBy: b, wantCAs: 1, wantChanges: true,
		},
		"Secret removed": {
			o:        State{Serving: first.Stored, Known: first.Bundle(), Trust: trusted, Now: start},
			wantSame: true, wantNew: true, wantCAs: 2, wantChanges: true,
		},
		"Secret removed, certificate expired": {
			o:       State{Serving: first.Stored, Known: first.Bundle(), Trust: trusted, Now: start.Add(policy.Validity)},
			wantNew: true, wantCAs: 2, wantChanges: true,
		},
		"Secret emptied": {
			o: State{Data: map[string][]byte{CertKey: {}, KeyKey: {}}, Now: start}, wantNew: true, wantCAs: 1, wantChanges: true,
		},
		"certificate lost": {o: State{Data: with(first.Data, CertKey, nil), Now: start}, wantBy: a, wantCAs: 1, wantChanges: true},
		"certificate lost, served here": {
			o: State{Data: with(first.Data, CertKey, nil), Serving: first.Stored, Now: start}, wantSame: true, wantCAs: 1, wantChanges: true,
		},
		"certificate lost while waiting": {
			o: State{Data: with(pending.Data, KeyKey, []byte("x")), Trust: both, Now: caDue}, wantBy: a, wantCAs: 2, wantChanges: true,
			wantPrev: true,
		},
		"certificate of others": {
			o: State{Data: with(first.Data, CertKey, otherHosts.CertPEM, KeyKey, otherHosts.KeyPEM), Now: start}, wantBy: a, wantCAs: 1,
			wantChanges: true,
		},
		"authority's key lost": {
			o: State{Data: with(first.Data, CAKey, nil), Trust: trusted, Now: start}, wantSame: true, wantNew: true, wantCAs: 2, wantChanges: true,
		},
		"authorities lost, none serves": {
			o: State{Data: with(first.Data, BundleKey, nil), Now: start}, wantNew: true, wantCAs: 1, wantChanges: true,
		},
		"authorities lost, served here": {
			o:        State{Data: with(first.Data, BundleKey, nil), Serving: first.Stored, Known: first.Bundle(), Now: start},
			wantSame: true, wantCAs: 1, wantChanges: true,
		},
		"an authority lost that another replica serves by": {
			o: State{
				Data: with(succeeded.Data, BundleKey, pki.EncodeCertificate(b)), Serving: succeeded.Stored, Known: succeeded.Bundle(),
				Trust: both, Now: settled,
			},
			wantSame: true, wantCAs: 2, wantChanges: true,
		},
		"authorities in another order": {
			o: State{
				Data: with(first.Data, BundleKey, append(bytes.Clone(foreignCA.CertPEM), first.Bundle()...)), Trust: trusted, Now: start,
			},
			wantSame: true, wantCAs: 2, wantChanges: true,
		},
		"garbage between authorities": {
			o:        State{Data: with(first.Data, BundleKey, append([]byte("note\n"), first.Bundle()...)), Trust: trusted, Now: start},
			wantSame: true, wantCAs: 1, wantChanges: true,
		},
		"taken over from cert-manager": {
			o: State{
				Data:  map[string][]byte{CertKey: foreign.CertPEM, KeyKey: foreign.KeyPEM, BundleKey: foreignCA.CertPEM},
				Trust: trusting(foreignCA.CertPEM, start), Now: start,
			},
			wantSame: true, wantNew: true, wantCAs: 2, wantChanges: true,
		},
		"only signer is unknown": {
			o:      State{Data: with(pending.Data, PreviousCAKey, nil), Trust: trusted, Now: caDue.Add(80 * 24 * time.Hour)},
			wantBy: b, wantCAs: 2, wantSame: false, wantChanges: false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "only signer is unknown" {
				// It signs only when it must.
				waits := decide(t, policy, test.o)
				signedBy(t, waits, a)
				test.o.Now, test.wantChanges = caDue.Add(82*24*time.Hour), true
			}
			d := decide(t, policy, test.o)
			if got := len(d.Changes) > 0; got != test.wantChanges {
				t.Errorf("changes %q", d.Changes)
			}
			bundle := authorities(d.Bundle(), test.o.Now)
			if len(bundle) != test.wantCAs {
				t.Errorf("%d authorities, want %d", len(bundle), test.wantCAs)
			}
			known := bundle[0].Equal(a) || strings.Contains(string(test.o.Data[BundleKey]), string(pki.EncodeCertificate(bundle[0])))
			if isNew := !known; isNew != test.wantNew {
				t.Errorf("a new authority: %t, want %t", isNew, test.wantNew)
			}
			if got := d.Data[PreviousCAKey] != nil; got != test.wantPrev {
				t.Errorf("previous key kept: %t, want %t", got, test.wantPrev)
			}
			was := test.o.Data[CertKey]
			if test.o.Serving != nil {
				was = test.o.Serving.certPEM
			}
			if same := bytes.Equal(d.Data[CertKey], was); same != test.wantSame {
				t.Errorf("same certificate: %t, want %t", same, test.wantSame)
			}
			if test.wantBy != nil {
				signedBy(t, d, test.wantBy)
			}
		})
	}
}

func with(data map[string][]byte, pairs ...any) map[string][]byte {
	result := maps.Clone(data)
	for i := 0; i < len(pairs); i += 2 {
		key, _ := pairs[i].(string)
		value, _ := pairs[i+1].([]byte)
		result[key] = value
		if value == nil {
			delete(result, key)
		}
	}
	return result
}

func TestBundleIsBounded(t *testing.T) {
	d := decide(t, policy, State{Now: start})
	kept := d.Stored
	for i := range 2 * maxAuthorities {
		// The Secret is removed repeatedly. The served certificate stays.
		var err error
		if d, err = policy.Decide(State{
			Serving: kept, Known: d.Bundle(), Trust: trusting(pki.EncodeCertificate(kept.Root), start),
			Now: start.Add(time.Duration(i) * time.Minute),
		}); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(authorities(d.Bundle(), start)); got != maxAuthorities {
		t.Errorf("%d authorities", got)
	}
	if !d.Stored.Same(kept) || !bytes.Contains(d.Bundle(), pki.EncodeCertificate(kept.Root)) {
		t.Error("the served certificate is no longer covered")
	}
}

func TestTrust(t *testing.T) {
	var pems [3][]byte
	var cas [3]*x509.Certificate
	for i := range pems {
		ca, err := pki.NewCA("ca", start, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		pems[i], cas[i] = ca.CertPEM, ca.Cert
	}
	join := func(is ...int) []byte {
		var out []byte
		for _, i := range is {
			out = append(out, pems[i]...)
		}
		return out
	}
	later := start.Add(time.Minute)
	for name, test := range map[string]struct {
		before Trust
		now    [][]byte
		want   map[int]time.Time
	}{
		"nothing there": {},
		"first look":    {now: [][]byte{join(0, 1), join(1)}, want: map[int]time.Time{1: later}},
		"still there": {
			before: trusting(join(0), start), now: [][]byte{join(1, 0), join(1, 0)}, want: map[int]time.Time{0: start, 1: later},
		},
		"gone from one": {before: trusting(join(0), start), now: [][]byte{join(0), nil}},
		"gone from all": {before: trusting(join(0), start)},
		"gone and come back": {
			before: trusting(join(0), start).Update([][]byte{join(1)}, start), now: [][]byte{join(0)}, want: map[int]time.Time{0: later},
		},
		"garbage": {now: [][]byte{[]byte("x")}},
	} {
		t.Run(name, func(t *testing.T) {
			got := test.before.Update(test.now, later)
			want := Trust{}
			for i, since := range test.want {
				want[string(cas[i].Raw)] = since
			}
			if !maps.Equal(got, want) {
				t.Errorf("trust is %v, want %v", got, want)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	serving := func() *Serving { return decide(t, policy, State{Now: start}).Stored }
	current, stored := serving(), serving()
	a, b := trusting(pki.EncodeCertificate(current.Root), start), trusting(pki.EncodeCertificate(stored.Root), start)
	both := maps.Clone(a)
	maps.Copy(both, b)
	settled, end := start.Add(policy.Settle()), start.Add(policy.Validity)
	for name, test := range map[string]struct {
		current *Serving
		trust   Trust
		now     time.Time
		want    *Serving
	}{
		"first":                       {now: start, want: stored},
		"neither is known":            {current: current, now: settled, want: stored},
		"only the served is known":    {current: current, trust: a, now: settled, want: current},
		"only the stored is known":    {current: current, trust: b, now: start, want: stored},
		"both known, one not settled": {current: current, trust: both, now: start, want: current},
		"both known":                  {current: current, trust: both, now: settled, want: stored},
		"the served expires":          {current: current, trust: a, now: end.Add(-time.Minute), want: stored},
		"the same authority":          {current: stored, now: start, want: stored},
		"the served expired long ago": {current: current, trust: a, now: end.Add(time.Hour), want: stored},
	} {
		t.Run(name, func(t *testing.T) {
			if got := policy.Choose(stored, test.current, test.trust, test.now); got != test.want {
				t.Errorf("serves a certificate of %s", got.Root.Subject.CommonName)
			}
		})
	}
}

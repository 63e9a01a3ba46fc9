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
	"math/rand"
	"testing"
	"time"

	"github.com/traas-stack/altershield-operator/internal/pki"
)

// The simulation plays replicas, optimistic concurrency, and API servers that learn of configurations late. Replicas stop
// between any two reads and writes, for a moment, for hours or for good. At any time, every API server must be able to
// verify every certificate that a replica serves.

// simulatedVersion is a bundle and the time since when a configuration carries it.
type simulatedVersion struct {
	since  time.Time
	bundle []byte
}

// question asks an API server whether a version of a configuration verifies a certificate, which its serial number names.
type question struct {
	certificate            string
	configuration, version int
}

type simulation struct {
	t      *testing.T
	random *rand.Rand
	now    time.Time
	// secret is nil if no Secret exists. revision counts its versions, also across deletions.
	secret   map[string][]byte
	revision int
	// configurations are all versions of each configuration. The last one is stored.
	configurations [2][]simulatedVersion
	// apiServers are the times up to which each API server knows each configuration. They only advance.
	apiServers [2][2]time.Time
	replicas   []*simulatedReplica
	// cautious are the replicas that must read everything before the next disturbance, and whether they began to:
	// the only copy in the memory of a replica must not be lost.
	cautious map[*simulatedReplica]bool

	verified    map[question]bool
	authorities map[string]bool
	issued      map[string]bool
	checks      int
}

type simulatedReplica struct {
	policy  Policy
	serving *Serving
	known   []byte
	trust   Trust
	looked  time.Time

	// step is the next step of the round, and the fields below are its results so far.
	step     int
	resume   time.Time
	seen     [2]int
	bundles  [2][]byte
	secret   map[string][]byte
	revision int
	decision *Decision
	at       time.Time
}

// delay returns the time until the next step, which is mostly short.
func (s *simulation) delay(r *simulatedReplica) time.Duration {
	between := func(most time.Duration) time.Duration { return time.Duration(s.random.Int63n(int64(most))) }
	switch n := s.random.Intn(1000); {
	case r.step == 0 && n < 800:
		return between(4 * time.Hour) // Much longer than in reality.
	case r.step == 0:
		return between(30 * time.Minute)
	case n < 60:
		return between(r.policy.Validity / 12) // Asleep in the middle of a round.
	case n < 200:
		return between(time.Minute)
	default:
		return between(100 * time.Millisecond)
	}
}

// advance does one step of a replica's round.
func (s *simulation) advance(r *simulatedReplica) {
	switch r.step {
	case 0, 1:
		if _, ok := s.cautious[r]; ok && r.step == 0 {
			s.cautious[r] = true
		}
		versions := s.configurations[r.step]
		r.seen[r.step], r.bundles[r.step] = len(versions), versions[len(versions)-1].bundle
	case 2:
		r.secret, r.revision = maps.Clone(s.secret), s.revision
		r.at = s.now
		r.trust = r.trust.Update(r.bundles[:], s.now)
		d, err := r.policy.Decide(State{Data: r.secret, Serving: r.serving, Known: r.known, Trust: r.trust, Now: s.now})
		if err != nil {
			s.t.Fatal(err)
		}
		r.decision = d
	case 3:
		if len(r.decision.Changes) > 0 {
			if r.revision != s.revision {
				r.step = 0 // A conflict.
				return
			}
			s.secret = r.decision.Data
			s.revision++
		}
		r.known = r.decision.Bundle()
		r.serving = r.policy.Choose(r.decision.Stored, r.serving, r.trust, r.at)
		s.note(r.decision)
	case 4, 5:
		i := r.step - 4
		if !bytes.Equal(r.bundles[i], r.decision.Bundle()) {
			if r.seen[i] != len(s.configurations[i]) {
				r.step = 0
				return
			}
			s.configurations[i] = append(s.configurations[i], simulatedVersion{s.now, r.decision.Bundle()})
		}
	}
	r.step++
	if r.step == 6 {
		r.step, r.looked = 0, s.now
		if s.cautious[r] {
			delete(s.cautious, r)
		}
	}
}

func (s *simulation) note(d *Decision) {
	s.issued[string(d.Data[CertKey])] = true
	for _, ca := range pki.ParseCertificates(d.Bundle()) {
		s.authorities[string(ca.Raw)] = true
	}
}

// learn advances what API servers know. They lag by less than the time that replicas wait.
func (s *simulation) learn() {
	for i := range s.apiServers {
		for j := range s.apiServers[i] {
			known := &s.apiServers[i][j]
			latest := s.now.Add(-time.Duration(s.random.Int63n(int64(s.replicas[0].policy.Settle()))))
			if latest.After(*known) {
				*known = latest
			}
		}
	}
}

// check checks that API servers can verify all served certificates.
func (s *simulation) check() {
	for _, r := range s.replicas {
		if !r.serving.lasts(s.now) {
			if r.serving != nil && s.now.Sub(r.looked) < r.policy.urgent() {
				s.t.Fatalf("%s: a replica in service serves an expired certificate", s.now)
			}
			continue
		}
		for i := range s.apiServers {
			for j, versions := range s.configurations {
				k := len(versions) - 1
				for k > 0 && versions[k].since.After(s.apiServers[i][j]) {
					k--
				}
				if k > 0 { // Before the very first injection there is nothing to know.
					s.checks++
					s.verify(r, j, k)
				}
			}
		}
	}
}

// verify verifies as an API server does, once for each question.
func (s *simulation) verify(r *simulatedReplica, configuration, version int) {
	key := question{r.serving.Certificate.Leaf.SerialNumber.String(), configuration, version}
	if s.verified[key] {
		return
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.configurations[configuration][version].bundle)
	for _, host := range r.policy.Hosts {
		if _, err := r.serving.Certificate.Leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: s.now, DNSName: host}); err != nil {
			s.t.Fatalf("%s: an API server refuses a certificate that is served: %v", s.now, err)
		}
	}
	s.verified[key] = true
}

// disturb crashes a replica or alters the Secret, at random.
func (s *simulation) disturb() {
	if len(s.cautious) > 0 {
		return
	}
	switch n := s.random.Intn(1000); {
	case n < 5:
		// A crash at any step. The new replica knows nothing.
		i := s.random.Intn(len(s.replicas))
		s.replicas[i] = &simulatedReplica{policy: s.replicas[i].policy, looked: s.now}
		s.cautious[s.replicas[i]] = false
	case n < 6:
		s.alter(func() { s.secret = nil })
	case n < 8:
		keys := []string{CertKey, KeyKey, BundleKey, CAKey, PreviousCAKey}
		s.alter(func() { s.secret = with(s.secret, keys[s.random.Intn(len(keys))], nil) })
	}
}

// alter alters the Secret. Every replica must see that before the next disturbance: only their memories have the former data.
func (s *simulation) alter(how func()) {
	for _, r := range s.replicas {
		if r.serving == nil || s.secret == nil {
			return
		}
	}
	how()
	s.revision++
	for _, r := range s.replicas {
		s.cautious[r] = false
	}
}

func TestSimulation(t *testing.T) {
	const day = 24 * time.Hour
	days := 365
	if testing.Short() {
		days = 40
	}
	for name, test := range map[string]struct {
		seed      int64
		disturbed bool
		validity  [2]time.Duration
	}{
		"undisturbed":         {seed: 1, validity: [2]time.Duration{3 * day, 3 * day}},
		"disturbed":           {seed: 2, disturbed: true, validity: [2]time.Duration{3 * day, 3 * day}},
		"disturbed, again":    {seed: 3, disturbed: true, validity: [2]time.Duration{3 * day, 3 * day}},
		"disturbed, reconfig": {seed: 4, disturbed: true, validity: [2]time.Duration{3 * day, 5 * day}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &simulation{
				t: t, random: rand.New(rand.NewSource(test.seed)), now: start,
				cautious: map[*simulatedReplica]bool{}, verified: map[question]bool{},
				authorities: map[string]bool{}, issued: map[string]bool{},
			}
			for i := range s.configurations {
				s.configurations[i] = []simulatedVersion{{since: start}}
			}
			for _, validity := range test.validity {
				s.replicas = append(s.replicas, &simulatedReplica{
					policy: Policy{Hosts: policy.Hosts, Validity: validity}, looked: start, resume: start,
				})
			}
			for s.now.Before(start.Add(time.Duration(days) * day)) {
				next := s.replicas[0]
				for _, r := range s.replicas {
					if r.resume.Before(next.resume) {
						next = r
					}
				}
				if next.resume.After(s.now) {
					s.now = next.resume
				}
				s.learn()
				s.check()
				s.advance(next)
				next.resume = s.now.Add(s.delay(next))
				s.check()
				if test.disturbed {
					s.disturb()
				}
			}
			// An authority of 30 days has a successor after 21.
			if got := len(s.authorities); got < days/30 {
				t.Errorf("%d authorities in %d days", got, days)
			}
			if got := len(s.issued); got < days/5 {
				t.Errorf("%d certificates in %d days", got, days)
			}
			if !test.disturbed && len(s.authorities) > days/18 {
				t.Errorf("%d authorities in %d days", len(s.authorities), days)
			}
			t.Logf("%d authorities, %d certificates, %d versions of a configuration, %d checks",
				len(s.authorities), len(s.issued), len(s.configurations[0]), s.checks)
		})
	}
}

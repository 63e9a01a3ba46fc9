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
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +kubebuilder:rbac:groups="",namespace=altershieldoperator-system,resources=secrets,resourceNames=altershieldoperator-webhook-server-cert,verbs=get;update
// +kubebuilder:rbac:groups="",namespace=altershieldoperator-system,resources=secrets,verbs=create

// made is a certificate that the operator makes. Each replica by itself stores the certificates in the common Secret, serves
// one and injects the bundle, so that no replica depends on another.
type made struct {
	*configurations
	policy Policy
	// serving is the certificate for handshakes.
	serving atomic.Pointer[Serving]
	// covered means that all webhooks have carried its authority.
	covered atomic.Bool
	// known and trust belong to the loop.
	known []byte
	trust Trust
}

func newMade(c *configurations) *made {
	o := &c.o
	m := &made{configurations: c, policy: Policy{
		Hosts: ServiceHosts(o.Namespace, o.Service), Validity: o.Validity, Authority: o.AuthorityValidity,
	}}
	c.writes = rate.NewLimiter(rate.Every(min(writesEvery, m.lookEvery())), writesAtOnce)
	return m
}

// lookEvery implements source.
func (m *made) lookEvery() time.Duration { return min(m.o.LookEvery, m.policy.LookEvery()) }

// get returns the certificate for a handshake.
func (m *made) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if s := m.serving.Load(); s != nil {
		return &s.Certificate, nil
	}
	return nil, errors.New("there is no certificate yet")
}

// ready returns an error if API servers cannot call this replica: its certificate is missing or expired, or its authority was
// never in all webhooks. A later change of the webhooks does not take the replica out of service, because it restores them.
func (m *made) ready(*http.Request) error {
	s := m.serving.Load()
	switch {
	case s == nil:
		return errors.New("there is no certificate yet")
	case !m.o.Clock.Now().Before(s.NotAfter()):
		return fmt.Errorf("the certificate expired at %s", s.NotAfter())
	case !m.covered.Load():
		return errors.New("the webhook configurations do not have the certificate's authority yet")
	default:
		return nil
	}
}

// ensure implements source.
func (m *made) ensure(ctx context.Context) error {
	all, secret, unseen := m.load(ctx)
	if secret == nil {
		return unseen
	}
	now := m.o.Clock.Now()
	d, err := m.policy.Decide(State{Data: secret.Data, Serving: m.serving.Load(), Known: m.known, Trust: m.trust, Now: now})
	if err != nil {
		return err
	}
	if err := m.store(ctx, secret, d); err != nil {
		return err
	}
	m.known = d.Bundle()
	m.serve(d, now)
	if unseen != nil {
		return unseen
	}
	var errs []error
	for _, configuration := range all {
		errs = append(errs, m.inject(ctx, configuration, d.Bundle(), now))
	}
	return errors.Join(errs...)
}

// load reads the configurations, and only then the Secret, so that no update of a configuration writes an older bundle. If a
// configuration cannot be read, the trust is empty, and the stored certificate is served anyway. A missing Secret is returned
// without a UID; nil means that it cannot be read.
func (m *made) load(ctx context.Context) (all []configuration, secret *corev1.Secret, unseen error) {
	var bundles [][]byte
	if all, unseen = m.read(ctx); unseen == nil {
		for _, configuration := range all {
			if configuration.live == nil {
				if !configuration.declared {
					bundles = append(bundles, nil)
				}
				continue
			}
			bundles = append(bundles, Bundles(configuration.live)...)
		}
	}
	secret = &corev1.Secret{}
	key := types.NamespacedName{Namespace: m.o.Namespace, Name: m.o.Secret}
	if err := m.client.Get(ctx, key, secret); apierrors.IsNotFound(err) {
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}, Type: corev1.SecretTypeTLS}
	} else if err != nil {
		return nil, nil, fmt.Errorf("read secret %s: %w", m.o.Secret, err)
	}
	m.trust = m.trust.Update(bundles, m.o.Clock.Now())
	return all, secret, unseen
}

// store writes the decided Secret, unless the Secret changed since it was read.
func (m *made) store(ctx context.Context, secret *corev1.Secret, d *Decision) error {
	if len(d.Changes) == 0 {
		return nil
	}
	write := func() error { return m.client.Update(ctx, secret) }
	if secret.ResourceVersion == "" {
		write = func() error { return m.client.Create(ctx, secret) }
	}
	secret.Data = d.Data
	if err := write(); err != nil {
		return fmt.Errorf("store secret %s: %w", m.o.Secret, err)
	}
	m.wrote = true
	m.o.Log.Info("stored certificates", "secret", m.o.Secret, "changes", strings.Join(d.Changes, "; "))
	return nil
}

// serve switches to the chosen certificate.
func (m *made) serve(d *Decision, now time.Time) {
	current := m.serving.Load()
	next := m.policy.Choose(d.Stored, current, m.trust, now)
	if m.trust.Covers(next) {
		m.covered.Store(true)
	}
	if next.Same(current) {
		return
	}
	m.serving.Store(next)
	m.o.Log.Info("serving a certificate", "authority", next.Root.Subject.CommonName, "expires", next.NotAfter())
	if m.o.OnServe != nil {
		m.o.OnServe(next.NotAfter())
	}
}

// inject writes the bundle into a configuration. The leader also restores the other fields, which differ between versions of
// the operator.
func (m *made) inject(ctx context.Context, c configuration, bundle []byte, now time.Time) error {
	if c.live == nil {
		if !m.overdue(c, now) {
			return nil
		}
		return m.create(ctx, c.want.Create(bundle), c.name)
	}
	m.found(c.name)
	next := Inject(c.live, bundle)
	if m.restores(c) {
		var err error
		if next, err = c.want.Restore(c.live, bundle); err != nil {
			return fmt.Errorf("restore %s: %w", c.name, err)
		}
	}
	return m.update(ctx, c, next)
}

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// +kubebuilder:rbac:groups="",namespace=altershieldoperator-system,resources=secrets,resourceNames=altershieldoperator-webhook-server-cert,verbs=get;list;watch;update
// +kubebuilder:rbac:groups="",namespace=altershieldoperator-system,resources=secrets,verbs=create

// made are certificates that are made here. Each replica serves, stores and injects by
// itself what the common Secret asks for, so that nothing hangs on one of them.
type made struct {
	*configurations
	policy Policy
	// A quarrel about configurations must not keep the Secret from being written.
	secretWrites *rate.Limiter

	// serving is read by handshakes; covered once webhooks were seen to carry
	// its authority. What follows is only the loop's.
	serving atomic.Pointer[Serving]
	covered atomic.Bool
	known   []byte
	trust   Trust
}

func newMade(c *configurations) *made {
	o := &c.o
	m := &made{configurations: c, policy: Policy{
		Hosts: ServiceHosts(o.Namespace, o.Service), Validity: o.Validity, Authority: o.AuthorityValidity,
	}}
	every := rate.Every(min(writesEvery, m.lookEvery()))
	c.writes, m.secretWrites = rate.NewLimiter(every, writesAtOnce), rate.NewLimiter(every, writesAtOnce)
	return m
}

// lookEvery implements source.
func (m *made) lookEvery() time.Duration { return m.policy.LookEvery() }

// secret is what is watched of it.
func (m *made) secret() client.Object {
	return partial(corev1.SchemeGroupVersion.WithKind("Secret"), m.o.Namespace, m.o.Secret)
}

// get is the certificate for a handshake.
func (m *made) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if s := m.serving.Load(); s != nil {
		return &s.Certificate, nil
	}
	return nil, errors.New("there is no certificate yet")
}

// ready says whether API servers can call this replica: it has a certificate
// that has not expired, and its authority was seen in every webhook. That a
// later change of them is not a reason to take the replica, which restores
// them, out of service.
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

// observed is what there is.
type observed struct {
	configurations []configuration
	// secret is nil when there is none.
	secret *corev1.Secret
	now    time.Time
}

// ensure implements source.
func (m *made) ensure(ctx context.Context) error {
	o, unseen := m.load(ctx)
	if o == nil {
		return unseen
	}
	data := map[string][]byte(nil)
	if o.secret != nil {
		data = o.secret.Data
	}
	d, err := m.policy.Decide(State{Data: data, Serving: m.serving.Load(), Known: m.known, Trust: m.trust, Now: o.now})
	if err != nil {
		return err
	}
	if err := m.applySecret(ctx, o.secret, d); err != nil {
		return err
	}
	m.known = d.Bundle()
	m.serve(d, o.now)
	if unseen != nil {
		return unseen
	}
	var errs []error
	for _, configuration := range o.configurations {
		errs = append(errs, m.inject(ctx, configuration, d.Bundle(), o.now))
	}
	return errors.Join(errs...)
}

// load reads the configurations, and only then the Secret: updated as they
// were, they get no bundle that is older than the one they have. Where one cannot
// be read, nothing is known of what API servers know; what is stored is served
// all the same.
func (m *made) load(ctx context.Context) (*observed, error) {
	o := &observed{}
	var unseen error
	var bundles [][]byte
	if o.configurations, unseen = m.read(ctx); unseen == nil {
		for _, configuration := range o.configurations {
			if configuration.live == nil {
				bundles = append(bundles, nil)
				continue
			}
			bundles = append(bundles, Bundles(configuration.live)...)
		}
	}
	secret := &corev1.Secret{}
	err := m.client.Get(ctx, types.NamespacedName{Namespace: m.o.Namespace, Name: m.o.Secret}, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read secret %s: %w", m.o.Secret, err)
	}
	if err == nil {
		o.secret = secret
	}
	o.now = m.o.Clock.Now()
	m.trust = m.trust.Update(bundles, o.now)
	return o, unseen
}

// applySecret stores what was decided, unless somebody stored something since.
func (m *made) applySecret(ctx context.Context, secret *corev1.Secret, d *Decision) error {
	if len(d.Changes) == 0 {
		return nil
	}
	if err := m.mayWrite(m.secretWrites); err != nil {
		return err
	}
	if secret == nil {
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: m.o.Namespace, Name: m.o.Secret},
			Type:       corev1.SecretTypeTLS,
			Data:       d.Data,
		}
		if err := m.client.Create(ctx, secret); err != nil {
			return fmt.Errorf("create secret %s: %w", m.o.Secret, err)
		}
	} else {
		secret = secret.DeepCopy()
		secret.Data = d.Data
		if err := m.client.Update(ctx, secret); err != nil {
			return fmt.Errorf("update secret %s: %w", m.o.Secret, err)
		}
	}
	m.wrote = true
	m.o.Log.Info("stored certificates", "secret", m.o.Secret, "changes", strings.Join(d.Changes, "; "))
	return nil
}

// serve takes up the certificate that is to be served.
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

// inject writes the bundle into a configuration, and on the leader restores the
// rest. Only the other content, which differs between versions of the operator,
// is for the leader.
func (m *made) inject(ctx context.Context, c configuration, bundle []byte, now time.Time) error {
	if c.live == nil {
		if !m.overdue(c.name, now) {
			return nil
		}
		return m.create(ctx, c.want.Create(bundle), c.name)
	}
	delete(m.missing, c.name)
	next := Inject(c.live, bundle)
	if m.leads() {
		var err error
		if next, err = c.want.Restore(c.live, bundle); err != nil {
			return fmt.Errorf("restore %s: %w", c.name, err)
		}
	}
	return m.update(ctx, c, next)
}

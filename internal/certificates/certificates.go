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

// Package certificates maintains the certificates of the webhooks, and the webhook configurations that carry their
// authorities. It runs on every replica.
//
//   - certificates.go: the loop
//   - made.go: certificates that the operator makes, shared in a Secret
//   - secret.go: the content of the Secret, and the certificate that a replica serves; pure, except for random keys
//   - files.go: a certificate in files, which another program makes
//   - configurations.go: the content of the webhook configurations; pure
//   - declared.go: the configurations of declared kinds
//   - apply.go: reads and writes the webhook configurations
//   - missing.go: reports configurations that stay missing
//
// github.com/open-policy-agent/cert-controller replaces the authority and the certificate in one write. Until injection,
// caches and mounted files have caught up, calls fail: an API server that cannot verify the webhook refuses the override of
// a block, too.
package certificates

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/options"
)

const (
	// roundTimeout bounds one round.
	roundTimeout = 15 * time.Second
	// conflicts is the number of attempts in a round while other replicas are quicker.
	conflicts = 5
	// afterWrite is the time to the next round after a write, and after a first failure. It doubles with each
	// further failure.
	afterWrite = time.Second
)

// Options configure Certificates.
type Options struct {
	options.Certificates
	// Configurations of the webhooks, without the names and the Service of the installation.
	Configurations []runtime.Object
	// ServicePort of the Service; 0 is 443.
	ServicePort int32
	// AuthorityValidity of authorities; 0 is ten times Validity.
	AuthorityValidity time.Duration
	// RecreateAfter is the time for which a configuration is missing before it is recreated; 0 is 30 seconds.
	RecreateAfter time.Duration
	// LookEvery is the longest time between rounds; 0 is 10 seconds. Certificates of a short validity need more rounds.
	// A watch would need another right, and a cache, for objects that hardly ever change.
	LookEvery time.Duration
	Clock     clock.WithTicker
	Log       logr.Logger
	// OnMissing is called in each round with the kind of each webhook configuration, and whether it is missing. May be
	// nil.
	OnMissing func(kind string, missing bool)
	// OnServe is called with the expiry of a newly served certificate. May be nil.
	OnServe func(notAfter time.Time)
}

func (o *Options) target() Target {
	return Target{Namespace: o.Namespace, Service: o.Service, Port: o.ServicePort}
}

// source is the source of the certificate: made or files.
type source interface {
	// ensure updates the served certificate and the webhook configurations.
	ensure(ctx context.Context) error
	// lookEvery returns the longest time between rounds.
	lookEvery() time.Duration
}

// Certificates maintains certificates and webhook configurations.
type Certificates struct {
	*configurations
	source
	// made is the source if the operator makes certificates, else nil.
	made   *made
	report *missingReport
	// mu guards a round, and a write of declared kinds.
	mu sync.Mutex
	// failures is the number of rounds that failed in a row.
	failures int
}

var (
	_ manager.Runnable               = &Certificates{}
	_ manager.LeaderElectionRunnable = &Certificates{}
)

// New returns a task for a manager.
func New(o Options) (*Certificates, error) {
	if o.ServicePort == 0 {
		o.ServicePort = 443
	}
	if o.RecreateAfter == 0 {
		o.RecreateAfter = recreateAfter
	}
	if o.LookEvery == 0 {
		o.LookEvery = 10 * time.Second
	}
	shared, err := newConfigurations(o)
	c := &Certificates{configurations: shared}
	if o.Dir != "" {
		c.source = &files{configurations: shared, injectors: map[string]map[string]string{}}
	} else {
		c.made = newMade(shared)
		c.source = c.made
	}
	return c, err
}

// GetCertificate returns the function by which the webhook server gets its certificate, nil if the server reads files.
func (c *Certificates) GetCertificate() func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c.made == nil {
		return nil
	}
	return c.made.get
}

// SetupWithManager adds the task and its readiness to the manager.
func (c *Certificates) SetupWithManager(mgr ctrl.Manager) error {
	// Decisions need stored objects, not cached ones.
	var err error
	if c.client, err = client.New(mgr.GetConfig(), client.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), FieldOwner: v1alpha1.FieldManager,
	}); err != nil {
		return fmt.Errorf("certificates of the webhooks: %w", err)
	}
	c.elected = mgr.Elected()
	c.report = &missingReport{
		client: mgr.GetClient(), recorder: mgr.GetEventRecorder("altershield-operator"), namespace: c.o.Namespace, clock: c.o.Clock,
	}
	if err := mgr.Add(c); err != nil || c.made == nil {
		return err
	}
	return mgr.AddReadyzCheck("certificate", c.made.ready)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (c *Certificates) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable. It runs rounds by the clock, and when this replica becomes the leader.
func (c *Certificates) Start(ctx context.Context) error {
	elected := c.elected
	for {
		timer := c.o.Clock.NewTimer(c.round(ctx))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-elected:
			elected = nil // A closed channel would wake the loop forever.
		case <-timer.C():
		}
		timer.Stop()
	}
}

var errTooMany = errors.New("too many writes: does another program write the webhooks' Secret or configurations, too?")

// round brings everything up to date, and returns the time to the next round.
func (c *Certificates) round(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	every, err := c.lookEvery(), c.attempt(ctx)
	// A configuration that may still be recreated is not reported, and changes no report.
	if lasting := c.lasting(); err == nil && c.report != nil && c.leads() && len(lasting) == len(c.missing) {
		err = c.report.update(ctx, lasting)
	}
	if !errors.Is(ctx.Err(), context.Canceled) && c.isNew("", err) {
		c.o.Log.Error(err, "maintain the webhooks' certificates; trying again")
	}
	if err != nil {
		c.failures++
		return min(afterWrite<<min(c.failures-1, 10), every)
	}
	c.failures = 0
	if c.wrote {
		return min(afterWrite, every)
	}
	return every
}

// attempt brings the certificates and the configurations up to date.
func (c *Certificates) attempt(ctx context.Context) error {
	now, err := c.o.Clock.Now(), errTooMany
	c.wrote = false
	if c.writes.TokensAt(now) >= 1 {
		for range conflicts {
			if err = c.ensure(ctx); err == nil || !isOutdated(err) {
				break
			}
		}
	}
	if c.wrote {
		c.writes.AllowN(now, 1)
	}
	return err
}

// isOutdated reports whether a write failed because another replica was quicker.
func isOutdated(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err)
}

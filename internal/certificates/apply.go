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
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// RBAC cannot restrict create to a name: with this right the manager could have any webhook called for any request. So the
// role does not contain it; an installation may add it (config/samples/restore).

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=altershieldoperator-mutating-webhook-configuration;altershieldoperator-declared-mutating,verbs=get;update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=altershieldoperator-validating-webhook-configuration;altershieldoperator-declared-validating,verbs=get;update
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get

const (
	// recreateAfter is the time for which a configuration is missing before it is recreated. An operator that is
	// being uninstalled has ended by then, and leaves no webhook without a server behind.
	recreateAfter = 30 * time.Second
	// adoptAgain is the time to the next attempt to own a configuration after a refusal.
	adoptAgain = time.Hour
	// createAgain is the time to the next attempt to create a configuration after a refusal.
	createAgain = time.Minute
	// writesEvery and writesAtOnce limit rounds that write, so that another program that undoes the writes causes no
	// storm. Certificates with a validity of seconds need more.
	writesEvery  = 5 * time.Second
	writesAtOnce = 10
)

// configurations reads and writes the webhook configurations.
type configurations struct {
	o      Options
	wanted []Configuration
	// declared are the configurations of declared kinds: see Write. Until known, they have no webhooks.
	declared []Configuration
	known    bool
	client   client.Client
	elected  <-chan struct{}
	writes   *rate.Limiter // of rounds that write
	// missing are the missing configurations by name, and since when they are missing; missingDeclared those of declared
	// kinds, which the ChangeKinds report.
	missing, missingDeclared map[string]time.Time
	// adoptAfter and createAfter are the times of the next attempt after a refusal.
	adoptAfter, createAfter time.Time
	// problems are the problems logged last, by subject.
	problems map[string]string
	// wrote means that the present round wrote to the API server.
	wrote bool
}

// configuration is a webhook configuration as wanted and as stored.
type configuration struct {
	name string
	want Configuration
	// live is nil if the configuration is missing.
	live *unstructured.Unstructured
	// declared means that the configuration is of declared kinds. authority is the bundle for it if another program owns the
	// bundles; nil if it is not known.
	declared  bool
	authority []byte
}

func newConfigurations(o Options) (*configurations, error) {
	wanted, err := NewConfigurations(o.Configurations, o.Mutating, o.Validating, o.target())
	if err != nil {
		return nil, err
	}
	c := &configurations{
		o: o, wanted: wanted, writes: rate.NewLimiter(rate.Every(writesEvery), writesAtOnce),
		missing: map[string]time.Time{}, missingDeclared: map[string]time.Time{}, problems: map[string]string{},
	}
	c.declared, err = c.ofDeclared(nil)
	return c, err
}

// isNew reports whether a problem differs from the last problem of a subject, so that each is logged once. A nil problem
// clears the subject.
func (c *configurations) isNew(subject string, problem error) bool {
	if problem == nil {
		delete(c.problems, subject)
		return false
	}
	was := c.problems[subject]
	c.problems[subject] = problem.Error()
	return was != problem.Error()
}

// read returns the configurations, and an error if some cannot be read.
func (c *configurations) read(ctx context.Context) ([]configuration, error) {
	var all []configuration
	var unseen error
	missing := map[string]bool{}
	for i, want := range slices.Concat(c.wanted, c.declared) {
		live := want.Object()
		next := configuration{name: live.GetKind() + " " + live.GetName(), want: want, declared: i >= len(c.wanted)}
		err := c.client.Get(ctx, client.ObjectKeyFromObject(live), live)
		if next.declared && (apierrors.IsForbidden(err) || apierrors.IsNotFound(err) && Empty(want.template)) {
			continue // roles and manifests of an older version, which has no declared kinds
		}
		if client.IgnoreNotFound(err) != nil {
			unseen = errors.Join(unseen, fmt.Errorf("read webhook configuration %s: %w", live.GetName(), err))
		}
		if err == nil {
			next.live = live
			delete(c.problems, next.name)
		}
		if client.IgnoreNotFound(err) == nil {
			missing[live.GetKind()] = missing[live.GetKind()] || err != nil
		}
		if next.declared && c.o.Dir != "" {
			next.beside(all)
		}
		all = append(all, next)
	}
	for kind, is := range missing {
		if c.o.OnMissing != nil {
			c.o.OnMissing(kind, is)
		}
	}
	return all, unseen
}

// leads reports whether this replica is the leader. A replica that loses the leadership ends.
func (c *configurations) leads() bool {
	select {
	case <-c.elected:
		return true
	default:
		return false
	}
}

// restores reports whether this replica restores a configuration. Only the leader does.
func (c *configurations) restores(of configuration) bool {
	if of.declared {
		return c.known
	}
	return c.leads()
}

// overdue records that a configuration is missing, and reports whether this replica has to recreate it now.
func (c *configurations) overdue(of configuration, now time.Time) bool {
	missing := c.missing
	if of.declared {
		missing = c.missingDeclared
	}
	since, known := missing[of.name]
	if !known {
		missing[of.name] = now
		c.o.Log.Info("a webhook configuration is missing", "configuration", of.name)
	}
	return c.restores(of) && known && now.Sub(since) >= c.o.RecreateAfter
}

// found records that a configuration is not missing.
func (c *configurations) found(name string) {
	delete(c.missing, name)
	delete(c.missingDeclared, name)
}

// lasting returns the configurations that are still missing after the time in which they would be recreated.
func (c *configurations) lasting() []string {
	var names []string
	for name, since := range c.missing {
		if c.o.Clock.Since(since) >= c.o.RecreateAfter {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// create recreates a missing configuration. The namespace owns it, so it is deleted with the namespace.
func (c *configurations) create(ctx context.Context, object *unstructured.Unstructured, name string) error {
	ns, err := c.namespace(ctx)
	if err != nil || ns == nil || ns.DeletionTimestamp != nil {
		return err
	}
	if c.o.Clock.Now().Before(c.createAfter) {
		return nil
	}
	if err := controllerutil.SetOwnerReference(ns, object, nil); err != nil {
		return err
	}
	err = c.client.Create(ctx, object)
	if apierrors.IsForbidden(err) {
		c.createAfter = c.o.Clock.Now().Add(createAgain)
		if c.isNew(name, err) {
			c.o.Log.Error(err, "a webhook configuration is missing, and the manager may not recreate it", "configuration", name, "remedy", remedy)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	c.wrote = true
	c.found(name)
	c.o.Log.Info("recreated a missing webhook configuration", "configuration", name)
	return nil
}

// update writes next if it differs. On the leader it also makes the namespace an owner. Otherwise the configuration would
// outlive a deleted namespace, and its webhook would deny releases without an override.
func (c *configurations) update(ctx context.Context, of configuration, next *unstructured.Unstructured) error {
	if of.live.GetDeletionTimestamp() != nil {
		return nil
	}
	changed := !equality.Semantic.DeepEqual(of.live.Object, next.Object)
	unread := c.adopt(ctx, next)
	adopted := !equality.Semantic.DeepEqual(of.live.GetOwnerReferences(), next.GetOwnerReferences())
	if !changed && !adopted {
		return unread
	}
	// The API server refuses the write if the configuration changed since it was read, which was before the Secret.
	err := c.client.Update(ctx, next)
	if apierrors.IsForbidden(err) && adopted {
		// The admission plugin OwnerReferencesPermissionEnforcement demands the right to delete an object before it
		// gets an owner. The other changes are written without an owner.
		c.adoptAfter = c.o.Clock.Now().Add(adoptAgain)
		c.o.Log.Info("the namespace cannot be made an owner of the webhook configurations: give the manager the right to delete them, "+
			"or delete them by hand when uninstalling", "configuration", of.name, "cause", err.Error())
		if !changed {
			return nil
		}
		next.SetOwnerReferences(of.live.GetOwnerReferences())
		err = c.client.Update(ctx, next)
	}
	if err != nil {
		return fmt.Errorf("update %s: %w", of.name, err)
	}
	c.wrote = true
	c.o.Log.Info("updated a webhook configuration", "configuration", of.name)
	return unread
}

// adopt makes the namespace an owner of a configuration, on the leader. It replaces a former namespace of the same name;
// other owners stay.
func (c *configurations) adopt(ctx context.Context, u *unstructured.Unstructured) error {
	if !c.leads() || c.o.Clock.Now().Before(c.adoptAfter) {
		return nil
	}
	ns, err := c.namespace(ctx)
	if err != nil || ns == nil {
		return err
	}
	return controllerutil.SetOwnerReference(ns, u, nil)
}

// namespace returns the namespace of the operator, nil if it does not exist.
func (c *configurations) namespace(ctx context.Context) (*metav1.PartialObjectMetadata, error) {
	ns := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: c.o.Namespace}}
	ns.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := c.client.Get(ctx, client.ObjectKeyFromObject(ns), ns); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read the operator's namespace: %w", err)
	}
	return ns, nil
}

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

// Creating cannot be restricted to a name: who may create any configuration may have any
// webhook called for any request. So that right is no part of the role; an installation may add
// it (config/samples/restore).

// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=mutatingwebhookconfigurations,resourceNames=altershieldoperator-mutating-webhook-configuration,verbs=get;update
// +kubebuilder:rbac:groups=admissionregistration.k8s.io,resources=validatingwebhookconfigurations,resourceNames=altershieldoperator-validating-webhook-configuration,verbs=get;update
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get

const (
	// recreateAfter is for how long a configuration has to be missing before
	// it is made again: an operator that is being uninstalled has ended by
	// then, and does not leave behind a webhook that nobody serves.
	recreateAfter = 30 * time.Second
	// adoptAgain is when to try again to own a configuration after a refusal.
	adoptAgain = time.Hour
	// createAgain is when to try again to make one after a refusal.
	createAgain = time.Minute
	// writesEvery and writesAtOnce are for rounds that write, so that another program
	// that writes the opposite causes no storm. Certificates that live for seconds need more.
	writesEvery  = 5 * time.Second
	writesAtOnce = 10
)

// configurations reads and writes the webhook configurations. What they have to
// be depends on where the certificate is from.
type configurations struct {
	o       Options
	wanted  []Configuration
	client  client.Client
	elected <-chan struct{}
	writes  *rate.Limiter // of rounds that write
	// missing are those that are, and since when.
	missing map[string]time.Time
	// adoptAfter and createAfter are when to try again what was refused.
	adoptAfter, createAfter time.Time
	// problems are those that were logged last, each by what it is about.
	problems map[string]string
	// wrote says that the API server was written to since it was reset.
	wrote bool
}

// configuration is one of them: as it is meant to be, and as it is.
type configuration struct {
	name string
	want Configuration
	// live is nil when there is none.
	live *unstructured.Unstructured
}

func newConfigurations(o Options) (*configurations, error) {
	target := Target{Namespace: o.Namespace, Service: o.Service, Port: o.ServicePort}
	wanted, err := NewConfigurations(o.Configurations, o.Mutating, o.Validating, target)
	return &configurations{
		o: o, wanted: wanted, writes: rate.NewLimiter(rate.Every(writesEvery), writesAtOnce),
		missing: map[string]time.Time{}, problems: map[string]string{},
	}, err
}

// isNew reports whether a problem is another one than the last about the same, so that each is
// logged once. Nil is none.
func (c *configurations) isNew(about string, problem error) bool {
	if problem == nil {
		delete(c.problems, about)
		return false
	}
	was := c.problems[about]
	c.problems[about] = problem.Error()
	return was != problem.Error()
}

// read gives the configurations, and an error for those that cannot be read.
func (c *configurations) read(ctx context.Context) ([]configuration, error) {
	var all []configuration
	var unseen error
	for _, want := range c.wanted {
		live := want.Object()
		next := configuration{name: live.GetKind() + " " + live.GetName(), want: want}
		err := c.client.Get(ctx, client.ObjectKeyFromObject(live), live)
		if client.IgnoreNotFound(err) != nil {
			unseen = errors.Join(unseen, fmt.Errorf("read webhook configuration %s: %w", live.GetName(), err))
		}
		if err == nil {
			next.live = live
			delete(c.problems, next.name)
		}
		if c.o.OnMissing != nil && client.IgnoreNotFound(err) == nil {
			c.o.OnMissing(live.GetKind(), err != nil)
		}
		all = append(all, next)
	}
	return all, unseen
}

// leads says whether this replica is the leader. One that stops being it ends.
func (c *configurations) leads() bool {
	select {
	case <-c.elected:
		return true
	default:
		return false
	}
}

// overdue notes that a configuration is missing, and says whether it is time, and
// for this replica, to make it again.
func (c *configurations) overdue(name string, now time.Time) bool {
	since, known := c.missing[name]
	if !known {
		c.missing[name] = now
		c.o.Log.Info("a webhook configuration is missing", "configuration", name)
	}
	return c.leads() && known && now.Sub(since) >= c.o.RecreateAfter
}

// lasting are the configurations that have been missing for longer than it takes to
// make them again.
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

// create makes a configuration that somebody removed. It is the namespace's, and
// goes with it.
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
			c.o.Log.Error(err, "a webhook configuration is missing, and the manager may not make it again", "configuration", name, "remedy", remedy)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	c.wrote = true
	delete(c.missing, name)
	c.o.Log.Info("made a webhook configuration that was missing", "configuration", name)
	return nil
}

// update writes next if it differs or, on the leader, if it has no owner: then
// it becomes the namespace's, as one that is made here. Without that it would be
// left behind when only the namespace is deleted, and deny releases that nobody
// can allow any more.
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
	// Refused if it is no longer as it was before the Secret was read.
	err := c.client.Update(ctx, next)
	if apierrors.IsForbidden(err) && adopted {
		// Where owners are guarded (OwnerReferencesPermissionEnforcement), only
		// the right to delete an object gives it one. The rest goes without.
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

// adopt makes the namespace, on the leader, an owner of a configuration. A former namespace of
// the name is none any more; other owners stay.
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

// namespace of the operator; nil when it cannot be read, or is not there.
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

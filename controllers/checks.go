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

package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/checks"
	"github.com/traas-stack/altershield-operator/internal/cluster"
	"github.com/traas-stack/altershield-operator/internal/defense"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/record"
)

// checker runs the checks of batches and releases, with any provider.
type checker struct {
	*cluster.Cluster
	providers []checks.Provider
	// emit reports a write.
	emit func(ctx context.Context, before, after checks.Subject, events []record.Event)
}

// forget lets the providers forget a subject.
func (c *checker) forget(key types.NamespacedName) {
	for _, p := range c.providers {
		p.Forget(key)
	}
}

// run takes the next step of every provider and writes its result, until all providers wait.
func (c *checker) run(ctx context.Context, s checks.Subject) (ctrl.Result, error) {
	for {
		wait, wrote, failed := time.Duration(0), false, []error(nil)
		for _, p := range c.providers {
			step, err := p.Next(ctx, s)
			if err != nil { // the other providers take their steps
				failed = append(failed, fmt.Errorf("check %s: %w", p.Name(), err))
				continue
			}
			if step.Write == nil {
				if step.After > 0 && (wait == 0 || step.After < wait) {
					wait = step.After
				}
				continue
			}
			if err := c.write(ctx, &s, step); err != nil {
				return cluster.Settle(ctx, ctrl.Result{}, err)
			}
			wrote = true
		}
		if err := errors.Join(failed...); !wrote && err != nil {
			return ctrl.Result{}, err
		}
		if !wrote {
			// A check in the background continues after ExecuteDone.
			if s.Batch != nil && s.Batch.Status.Status == v1alpha1.ChangePodExecuteDone && s.Batch.Status.EndDueTimeUnix == 0 && wait == 0 {
				c.forget(s.Key())
			}
			return ctrl.Result{RequeueAfter: wait}, nil
		}
	}
}

// writeAgain is retry.DefaultRetry without jitter, so that a story with a seed plays twice in the same order.
var writeAgain = wait.Backoff{Steps: 5, Duration: 10 * time.Millisecond, Factor: 1}

// write writes the result of one step. The result of a lasting step is written even if the
// subject has changed.
func (c *checker) write(ctx context.Context, s *checks.Subject, step checks.Step) error {
	if !step.Lasting {
		return c.writeOnce(ctx, s, step)
	}
	first := true
	return retry.RetryOnConflict(writeAgain, func() error {
		fresh := *s
		if !first {
			if err := c.reload(ctx, &fresh); err != nil {
				return err
			}
		}
		first = false
		// The workload may have left the defense during the call.
		defended, err := c.Defended(ctx, fresh.Release)
		if err != nil {
			return err
		}
		if !defended {
			step.Written()
			return gone(s)
		}
		if err := c.writeOnce(ctx, &fresh, step); err != nil {
			return err
		}
		step.Written()
		*s = fresh
		return nil
	})
}

// writeOnce writes a result, and fails if the subject has changed since it was read.
func (c *checker) writeOnce(ctx context.Context, s *checks.Subject, step checks.Step) error {
	decision := step.Write(*s)
	before, after := *s, *s
	switch {
	case decision.Void:
		if step.Lasting {
			step.Written()
		}
		return gone(s)
	case decision.Batch != nil:
		after.Batch = s.Batch.DeepCopy()
		after.Batch.Status = *decision.Batch
		if err := c.Client.Status().Update(ctx, after.Batch); err != nil {
			return fmt.Errorf("update status of changepod %s: %w", after.Batch.Name, err)
		}
	case decision.Release != nil:
		after.Release = s.Release.DeepCopy()
		after.Release.Status = *decision.Release
		if err := c.Client.Status().Update(ctx, after.Release); err != nil {
			return fmt.Errorf("update the checks in the status of changeworkload %s: %w", after.Release.Name, err)
		}
	}
	c.emit(ctx, before, after, decision.Events)
	*s = after
	return nil
}

// reload reads the object whose status is written from the API server.
func (c *checker) reload(ctx context.Context, s *checks.Subject) error {
	key := s.Key()
	if s.Batch != nil {
		batch := &v1alpha1.ChangePod{}
		if err := c.Live.Get(ctx, key, batch); err != nil {
			return fmt.Errorf("get changepod %s: %w", key, err)
		}
		s.Batch = batch
		return nil
	}
	release := &v1alpha1.ChangeWorkload{}
	if err := c.Live.Get(ctx, key, release); err != nil {
		return fmt.Errorf("get changeworkload %s: %w", key, err)
	}
	s.Release = release
	return nil
}

// gone returns the error for a subject that no longer exists: nothing is written about it.
func gone(s *checks.Subject) error {
	object := client.Object(s.Release)
	resource := "changeworkloads"
	if s.Batch != nil {
		object, resource = s.Batch, "changepods"
	}
	return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource(resource).GroupResource(), object.GetName())
}

// loadFreeze adds the freeze that denies releases of the workload now.
func loadFreeze(ctx context.Context, v cluster.View, in *defense.ReleaseInput) error {
	policies, of, err := v.PoliciesFor(ctx, in.Workload)
	if err != nil {
		return err
	}
	if f := policy.FrozenAt(policies, v.Operator, in.Now, of); f != nil && f.Denies() {
		in.FrozenBy, in.FrozenUntil = f.Name, f.End
	}
	return nil
}

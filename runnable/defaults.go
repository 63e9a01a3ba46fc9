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

// Package runnable holds the background tasks of the manager.
package runnable

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/policy"
	"github.com/traas-stack/altershield-operator/internal/settings"
)

// Tasks of the leader need the lease that main.go names; a role cannot restrict its creation to this
// name.

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=altershieldoperator-system,resources=leases,verbs=create

// Defaults creates the OpsConfigInfo objects and the default policy that are missing when the manager
// starts. It does not change existing objects. It runs once, on the leader only.
type Defaults struct {
	Client client.Client
	// Namespace of the operator.
	Namespace string
	Log       logr.Logger

	// mode of the default policy; empty while it is not decided.
	mode v1alpha1.PolicyMode
}

var (
	_ manager.Runnable               = &Defaults{}
	_ manager.LeaderElectionRunnable = &Defaults{}
)

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (d *Defaults) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable. It ends when every object exists. The defaults are in force
// without the objects, so that a failed creation stops nothing.
func (d *Defaults) Start(ctx context.Context) error {
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 10, Cap: time.Minute}
	logged := ""
	err := backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := d.create(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			d.Log.Error(err, "create the default policy and settings; the defaults of settings are in force anyway, trying again")
		}
		return err == nil, nil
	})
	if err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// create creates the policy first: without their objects the settings have their
// defaults, and nothing is checked without a policy.
func (d *Defaults) create(ctx context.Context) error {
	if err := d.createPolicy(ctx); err != nil {
		return err
	}
	var there v1alpha1.OpsConfigInfoList
	if err := d.Client.List(ctx, &there, client.InNamespace(d.Namespace)); err != nil {
		return fmt.Errorf("list opsconfiginfoes: %w", err)
	}
	for _, object := range settings.DefaultObjects(d.Namespace) {
		if settings.Has(there.Items, object.Name) {
			continue // perhaps under a former name, whose value a default must not replace
		}
		err := d.Client.Create(ctx, &object)
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create opsconfiginfo %s/%s: %w", d.Namespace, object.Name, err)
		}
		if err == nil {
			d.Log.Info("created a default setting", "opsconfiginfo", object.Name)
		}
	}
	return nil
}

// createPolicy creates the default policy: in enforce mode on a new installation, and in observe mode
// if releases were recorded before, so that an upgrade alone does not begin to suspend releases.
func (d *Defaults) createPolicy(ctx context.Context) error {
	object := policy.Default(d.Namespace)
	key := client.ObjectKeyFromObject(object)
	if err := d.Client.Get(ctx, key, &v1alpha1.DefensePolicy{}); !apierrors.IsNotFound(err) {
		if err != nil {
			return fmt.Errorf("get defensepolicy %s: %w", key, err)
		}
		return nil
	}
	if d.mode == "" {
		// Decided at the first try: a release before the second try is no sign of an upgrade.
		var releases v1alpha1.ChangeWorkloadList
		if err := d.Client.List(ctx, &releases, client.Limit(1)); err != nil {
			return fmt.Errorf("list changeworkloads: %w", err)
		}
		if d.mode = v1alpha1.ModeEnforce; len(releases.Items) > 0 {
			d.mode = v1alpha1.ModeObserve
		}
	}
	object.Spec.Mode = d.mode
	if err := d.Client.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create defensepolicy %s: %w", key, err)
	}
	d.Log.Info("created the default policy", "defensepolicy", key.Name, "mode", object.Spec.Mode)
	return nil
}

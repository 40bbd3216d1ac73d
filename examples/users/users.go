package main

import (
	"context"
	"encoding/csv"
	"io"
	"net/http"
	"strconv"

	"zombiezen.com/go/sqlite"

	"github.com/headpond/headpond/route"
)

// User is a user.
type User struct {
	ID    int64  `json:"id"`
	Name  string `json:"name"`
	Email string `json:"email"`
	Age   int    `json:"age,omitempty"`
}

// CreateUser has the fields of a new user.
type CreateUser struct {
	Name  string `json:"name" form:"name" validate:"required,max=100"`
	Email string `json:"email" form:"email" validate:"required,email,max=200"`
	Age   int    `json:"age,omitempty" form:"age" validate:"omitempty,min=1,max=150"`
}

// UserID names a user.
type UserID struct {
	ID int64 `path:"id" validate:"min=1"`
}

// UpdateUser changes the fields that are not nil.
type UpdateUser struct {
	UserID
	Name  *string `json:"name,omitempty" validate:"omitempty,min=1,max=100"`
	Email *string `json:"email,omitempty" validate:"omitempty,email,max=200"`
	Age   *int    `json:"age,omitempty" validate:"omitempty,min=1,max=150"`
}

// ListUsers asks for one page.
type ListUsers struct {
	After int64 `query:"after" validate:"min=0"`
	Limit int   `query:"limit" default:"50" validate:"min=1,max=500"`
}

// Users is a page of users.
type Users struct {
	Users []User `json:"users"`
	Next  int64  `json:"next,omitempty"` // for after, when there are more
}

// health is the answer of the health check.
type health struct {
	Users int64 `json:"users"`
}

func (s *store) create(c *route.Ctx, req CreateUser) (User, error) {
	u := User{Name: req.Name, Email: req.Email, Age: req.Age}
	err := s.insert(c.Context(), &u)
	if err == nil {
		c.Header().Set("Location", "/api/users/"+strconv.FormatInt(u.ID, 10))
	}
	return u, err
}

func (s *store) list(c *route.Ctx, req ListUsers) (Users, error) {
	page := Users{Users: []User{}}
	err := s.each(c.Context(), req.After, req.Limit+1, func(u User) error {
		page.Users = append(page.Users, u)
		return nil
	})
	if len(page.Users) > req.Limit {
		page.Users = page.Users[:req.Limit]
		page.Next = page.Users[req.Limit-1].ID
	}
	return page, err
}

func (s *store) get(c *route.Ctx, req UserID) (User, error) { return s.find(c.Context(), req.ID) }

func (s *store) update(c *route.Ctx, req UpdateUser) (User, error) {
	return s.change(c.Context(), req.ID, func(u *User) {
		set(&u.Name, req.Name)
		set(&u.Email, req.Email)
		set(&u.Age, req.Age)
	})
}

// set changes a value that is given.
func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

func (s *store) remove(c *route.Ctx, req UserID) (struct{}, error) {
	return struct{}{}, s.delete(c.Context(), req.ID)
}

// export streams all users, however many they are, page by page, so that no reader of the database is held
// while a client is slow.
func (s *store) export(c *route.Ctx, _ struct{}) (route.Stream, error) {
	return route.Stream{ContentType: "text/csv; charset=utf-8", Write: func(w io.Writer) error {
		out := csv.NewWriter(w)
		if err := out.Write([]string{"id", "name", "email", "age"}); err != nil {
			return err
		}
		for after, more := int64(0), true; more; {
			more = false
			err := s.each(c.Context(), after, 500, func(u User) error {
				after, more = u.ID, true
				return out.Write([]string{strconv.FormatInt(u.ID, 10), u.Name, u.Email, strconv.Itoa(u.Age)})
			})
			if err != nil {
				return err
			}
		}
		out.Flush()
		return out.Error()
	}}, nil
}

func (s *store) health(ctx context.Context) (h health, err error) {
	h.Users, err = s.count(ctx)
	return h, err
}

// problemOf turns errors of the database into problems for clients.
func problemOf(err error) *route.Problem {
	if sqlite.ErrCode(err) == sqlite.ResultConstraintUnique {
		return &route.Problem{Status: http.StatusConflict, Detail: "there is a user with this e-mail address", Err: err}
	}
	return nil
}
